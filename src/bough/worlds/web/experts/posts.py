"""Experts for pages with mail, posts and orders: find the row, then the icon in it."""

from __future__ import annotations

import re

from bough.worlds.web.actions import Line
from bough.worlds.web.experts.scene import Advice, Expert, Scene, StuckError, click, fill, first


def find_icon(lines: list[Line], name: str) -> Line:
    return first(line for line in lines if name in str(line.facts.get("class", "")).split())


def mail_of(scene: Scene, sender: str) -> list[Line]:
    """The row of a sender's mail and the icons in it."""
    rows = [
        place for place, line in enumerate(scene.elements) if line.kind == "div" and line.name.startswith(sender + " ")
    ]
    if not rows:
        raise StuckError
    return scene.elements[rows[0] : rows[0] + 3]


def mail(scene: Scene) -> Advice:
    """Delete, star, reply to, or forward the mail by somebody."""
    sender = scene.goal_match(r"email by (.+?) and ")[1]  # a name may have a hyphen or a space
    if "trash icon" in scene.goal or "delete" in scene.goal:
        return mark(scene, sender, "trash")
    if "star icon" in scene.goal:
        return mark(scene, sender, "star")
    if "reply" in scene.goal:
        return answer(scene, sender, "Reply", scene.quoted[0])
    return answer(scene, sender, "Forward", scene.goal_match(r"forward that email to (.+?)\.")[1])


def mark(scene: Scene, sender: str, icon: str) -> Advice:
    """Clicks an icon of the mail in the inbox."""
    opened = scene.identified("close-reply", "close-forward", "search-cancel", "close-email")
    return click(opened, "I go back to the inbox.") if opened else click(find_icon(mail_of(scene, sender), icon))


def answer(scene: Scene, sender: str, button: str, text: str) -> Advice:
    """Opens the mail, then its form, fills it in and sends it. What is open by mistake is closed first."""
    form, other = ("reply", "forward") if button == "Reply" else ("forward", "reply")
    if wrong := scene.identified(f"close-{other}", "search-cancel"):
        return click(wrong, "This is not the right place; I go back.")
    if send := scene.identified(f"send-{form}"):
        fields = scene.all("text", "textarea")
        if not _form_is_right(scene, sender, button):
            return click(first(scene.all(id=f"close-{form}")), "This is not the right mail; I go back.")
        return fill(fields[0], text) if fields[0].facts["value"] != text else click(send)
    if close := scene.identified("close-email"):
        right = _mentioned(sender, scene.texts)
        return click(scene.named(button)) if right else click(close, "This is not the right mail; I go back.")
    return click(mail_of(scene, sender)[0])


def _form_is_right(scene: Scene, sender: str, button: str) -> bool:
    """Whether a reply goes to the sender, or what is forwarded is the sender's mail and unchanged."""
    if button == "Reply":
        return f"to: {sender}" in scene.texts
    texts = [line.facts["value"] for line in scene.all("textarea")]
    mails = [view for view in scene.seen if any(line.facts.get("id") == "close-email" for line in view)]
    if not mails or not texts:
        return True
    shown = [line.name for line in mails[-1] if not line.number]
    return _mentioned(sender, shown) and any(re.sub(r"\s+", " ", str(texts[0])).strip() in line for line in shown)


def _mentioned(name: str, texts: list[str]) -> bool:
    return f" {name} " in f" {' '.join(' '.join(texts).split())} "


BUTTONS = {"Reply": "reply", "Retweet": "retweet", "Like": "like", "Share": "share"}


def _posts(scene: Scene) -> list[tuple[str, list[Line]]]:
    """Each post's user and its icons."""
    posts: list[tuple[str, list[Line]]] = []
    for line in scene.lines:
        user = None if line.number else re.search(r"@\w+", line.name)
        if user:
            posts.append((user[0], []))
        elif line.number and posts:
            posts[-1][1].append(line)
    return posts


def post(scene: Scene) -> Advice:
    user, button = scene.goal_match(r"For the user (@\w+), click on the \"(.*)\" button").groups()
    posts = _posts(scene)
    for name, icons in posts:
        if items := [line for line in icons if line.kind == "li"]:  # the menu of one post at a time is open
            if name == user and any(line.name.startswith(button) for line in items):
                return click(first(line for line in items if line.name.startswith(button)))
            return click(find_icon(icons, "more"), "This menu is not the right one; I close it.")
    icons = next(icons for name, icons in posts if name == user)
    name = button.lower().split()[0]
    direct = [line for line in icons if name in str(line.facts.get("class", "")).split()]
    return click(direct[0]) if direct else click(find_icon(icons, "more"), "It must be among the others.")


def posts_by(scene: Scene) -> Advice:
    """The same icon on all posts of a user, or on as many as the goal says."""
    button, user = scene.goal_match(r"Click the \"(.*)\" button on .* by (@\w+)").groups()
    icons = [find_icon(icons, BUTTONS[button]) for name, icons in _posts(scene) if name == user]
    amount = re.search(r"on (\d+) posts?", scene.goal)
    wanted = icons[: int(amount[1])] if amount else icons
    for icon in [icon for _, of_post in _posts(scene) for icon in of_post if icon.facts.get("class")]:
        if ("active" in str(icon.facts["class"]).split()) != (icon in wanted):
            return click(icon)
    return click(scene.submit())


EXPERTS: dict[str, Expert] = {
    **dict.fromkeys(
        ("email-inbox", "email-inbox-delete", "email-inbox-forward", "email-inbox-important", "email-inbox-noscroll",
         "email-inbox-reply", "email-inbox-star-reply"),
        mail,
    ),
    "social-media": post,
    "social-media-all": posts_by,
    "social-media-some": posts_by,
}  # fmt: skip
