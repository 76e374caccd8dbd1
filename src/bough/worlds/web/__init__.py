"""MiniWoB++ pages in a real Chromium: see `environment.Web`."""
