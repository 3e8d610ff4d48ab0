#!/bin/sh
# Train the agent on Spider: ./train.sh SPIDER_FOLDER RUN.toml [OPTIONS of lightning-core optimize]
set -eu

spider=${1:?"usage: train.sh SPIDER_FOLDER RUN.toml [OPTIONS]"}
shift
python "$(dirname "$0")/convert_dataset.py" "$spider"
exec lightning-core optimize "$@"
