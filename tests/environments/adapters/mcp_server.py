"""A small MCP server: a shop with a stock, written with the server class of mcp itself."""

import os
import sys
import time
from typing import Any

from mcp.server import MCPServer


def shop() -> Any:
    """A server with a stock of its own."""
    server = MCPServer("shop", instructions="You work in a shop.")
    stock = {"apple": 3, "pear": 1}

    @server.tool()
    def price(item: str) -> float:
        """Price of one item in euros."""
        return {"apple": 0.5, "pear": 0.75}[item]

    @server.tool()
    def sell(item: str, count: int = 1) -> str:
        """Sells items."""
        stock[item] -= count
        return f"sold {count} {item}"

    @server.tool(name="stock")
    def left(item: str) -> int:
        """How many are left."""
        return stock[item]

    @server.tool()
    def crash() -> str:
        """Ends the server, as a bug does."""
        os._exit(3)

    @server.tool()
    def hang() -> str:
        """Takes far too long."""
        time.sleep(float(os.environ.get("SHOP_HANG_S", "30")))
        return "at last"

    return server


if __name__ == "__main__":
    print("shop is open", file=sys.stderr, flush=True)
    shop().run()
