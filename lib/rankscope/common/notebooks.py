"""What `make lab` changes in JupyterLab: how it saves a notebook, and how fast a widget answers."""

from __future__ import annotations

from typing import Any

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_PICTURE = "image/svg+xml"


def without_views(model: dict[str, Any], **_: Any) -> None:
    """Leave the views of widgets out of what is saved where a picture can stand for them.

    JupyterLab prefers a view, and says "model not found" when the kernel that made it is gone. This is a
    ``pre_save_hook`` of Jupyter Server's ContentsManager.
    """
    if model["type"] != "notebook":
        return
    for cell in model["content"]["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if _PICTURE in data:
                data.pop(_WIDGET_VIEW, None)


class PromptConnection(ZMQChannelsWebsocketConnection):
    """A browser's connection to a kernel that sends each message at once.

    Otherwise TCP holds small messages back until the browser acknowledges the one before, which takes it 40 ms (RFC
    896, RFC 1122 4.2.3.2), and a slider that moves gets 20 pictures a second at most. This is a
    ``kernel_websocket_connection_class`` of Jupyter Server.
    """

    def connect(self) -> Any:
        self.websocket_handler.set_nodelay(True)
        return super().connect()
