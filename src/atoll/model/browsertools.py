"""How the browser tools that agents use are told where a capsule's own browser is.

Each takes the address of a browser that runs already: none of them starts another one.
"""

from __future__ import annotations

Settings = dict[str, object]

VARIABLES = ("PLAYWRIGHT_MCP_CDP_ENDPOINT",)
"""What tools read instead of an option."""


def _mcp(name: str, package: str, option: str, endpoint: str) -> Settings:
    server = {"command": "npx", "args": ["-y", f"{package}@latest", option, endpoint]}
    return {"mcpServers": {name: server}}


def settings_of(tool: str, endpoint: str) -> Settings:
    """For `.mcp.json`, or the arguments of the library's own call. KeyError for another tool."""
    told: dict[str, Settings] = {
        "playwright-mcp": _mcp("playwright", "@playwright/mcp", "--cdp-endpoint", endpoint),
        "chrome-devtools-mcp": _mcp(
            "chrome-devtools", "chrome-devtools-mcp", "--browserUrl", endpoint
        ),
        # `Browser(**settings)` and `puppeteer.connect(settings)`.
        "browser-use": {"cdp_url": endpoint},
        "puppeteer": {"browserURL": endpoint, "defaultViewport": None},
    }
    return told[tool]


TOOLS = ("playwright-mcp", "chrome-devtools-mcp", "browser-use", "puppeteer")
