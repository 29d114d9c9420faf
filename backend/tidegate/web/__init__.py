"""Pages, API and live stream."""

from tidegate.web.application import create_app
from tidegate.web.appstate import AppState, Live, Opened, app_state

__all__ = ["AppState", "Live", "Opened", "app_state", "create_app"]
