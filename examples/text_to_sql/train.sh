#!/bin/sh
# Train the agent on Spider: ./train.sh SPIDER_FOLDER RUN.toml [OPTIONS of lightning-core optimize]
# By the backend's own file: ./train.sh SPIDER_FOLDER --backend prompt [OPTIONS]      (train_prompt.toml: no weights are changed)
set -eu

spider=${1:?"usage: train.sh SPIDER_FOLDER RUN.toml [OPTIONS], or SPIDER_FOLDER --backend prompt [OPTIONS]"}
shift
here=$(dirname "$0")
python "$here/convert_dataset.py" "$spider"
if [ "${1-}" = --backend ]; then
    set -- "$here/train_${2-}.toml" "$@"
fi
exec lightning-core optimize "$@"
