"""MiniWoB++ pages in a real Chromium: `environment.Web`, and what it is made of."""
