"""The model server: `python -m lightning_local.serve --model smollm2 --port 8000`.

`app` speaks HTTP, `chat` turns messages into text and text into tool calls, `scheduler` runs the batch in a thread
of its own, `batch` holds the key-value cache, `sampling` draws tokens, `text` turns tokens into text.
"""
