"""The server: store, gateway and API in one process, the single authority over rollouts and attempts."""

from lightning_core.server.app import Server, ServerConfig

__all__ = ["Server", "ServerConfig"]
