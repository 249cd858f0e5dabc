"""Configuration of browser tools, so that they connect to a capsule's browser.

Every tool connects to a browser that is already running; none starts another one.
"""

from __future__ import annotations

Settings = dict[str, object]

VARIABLES = ("PLAYWRIGHT_MCP_CDP_ENDPOINT",)
"""Environment variables that tools read instead of an option."""


def _mcp(name: str, package: str, option: str, endpoint: str) -> Settings:
    server = {"command": "npx", "args": ["-y", f"{package}@latest", option, endpoint]}
    return {"mcpServers": {name: server}}


def settings_of(tool: str, endpoint: str) -> Settings:
    """The content of `.mcp.json`, or the arguments of a library's call. Raises KeyError."""
    settings: dict[str, Settings] = {
        "playwright-mcp": _mcp("playwright", "@playwright/mcp", "--cdp-endpoint", endpoint),
        "chrome-devtools-mcp": _mcp(
            "chrome-devtools", "chrome-devtools-mcp", "--browserUrl", endpoint
        ),
        # `Browser(**settings)` and `puppeteer.connect(settings)`.
        "browser-use": {"cdp_url": endpoint},
        "puppeteer": {"browserURL": endpoint, "defaultViewport": None},
    }
    return settings[tool]


TOOLS = ("playwright-mcp", "chrome-devtools-mcp", "browser-use", "puppeteer")
