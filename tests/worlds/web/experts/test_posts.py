import pytest

from bough.worlds.web.experts import posts
from bough.worlds.web.experts.scene import StuckError
from tests.worlds.web.experts.scenes import advice, lines

INBOX = [
    ("div", "Annabel Hi. Lorem.."), ("span", "", {"class": "trash"}), ("span", "", {"class": "star"}),
    ("div", "Anna Re. Ipsum.."), ("span", "", {"class": "trash"}), ("span", "", {"class": "star"}),
]  # fmt: skip


MAIL = [
    ("span", "", {"id": "close-email"}), "Re.", "Anna to me", "Lorem ipsum.", ("span", "Reply"), ("span", "Forward"),
]  # fmt: skip


def test_a_mail_is_found_by_its_sender_and_dealt_with():
    assert advice(posts.mail, "Find the email by Anna and click the trash icon to delete it.", *INBOX) == "click('5')"
    assert advice(posts.mail, "Find the email by Annabel and click the star icon to mark it.", *INBOX) == "click('3')"
    with pytest.raises(StuckError):
        advice(posts.mail, "Find the email by Bob and click the star icon.", *INBOX)


@pytest.mark.parametrize("name", ["Kara-Lynn", "Zsa Zsa"])
def test_names_have_hyphens_and_spaces_too(name: str):
    inbox = [("div", "Zsa Hi. Lorem.."), *INBOX[1:3], ("div", f"{name} Re. Ipsum.."), *INBOX[4:]]
    assert (
        advice(posts.mail, f"Find the email by {name} and click the trash icon to delete it.", *inbox) == "click('5')"
    )
    opened = [*MAIL[:2], f"{name} to me", *MAIL[3:]]
    assert advice(posts.mail, f"Find the email by {name} and forward that email to Jo Ann.", *opened) == "click('3')"
    form = [("span", "", {"id": "close-forward"}), ("span", "", {"id": "send-forward"}), ("text", "", {"value": ""})]
    sent = [*form, ("textarea", "", {"value": "Lorem ipsum."})]
    goal = f"Find the email by {name} and forward that email to Jo Ann."
    assert advice(posts.mail, goal, *sent, did=("click('3')",), seen=[lines(*opened)]) == "fill('3', 'Jo Ann')"


def test_a_mail_is_opened_answered_and_sent():
    goal = 'Find the email by Anna and reply to them with the text "Yes".'
    assert advice(posts.mail, goal, *INBOX) == "click('4')"
    assert advice(posts.mail, goal, *MAIL) == "click('2')"
    form = [("span", "", {"id": "close-reply"}), ("span", "", {"id": "send-reply"}), "to: Anna"]
    assert advice(posts.mail, goal, *form, ("textarea", "", {"value": ""})) == "fill('3', 'Yes')"
    assert advice(posts.mail, goal, *form, ("textarea", "", {"value": "Yes"})) == "click('2')"


def test_a_mail_is_forwarded_to_whom_the_goal_names():
    goal = "Find the email by Anna and forward that email to Bob."
    assert advice(posts.mail, goal, *MAIL) == "click('3')"
    form = [("span", "", {"id": "close-forward"}), ("span", "", {"id": "send-forward"}), ("text", "", {"value": ""})]
    opened = {"did": ("click('3')",), "seen": [lines(*MAIL)]}
    assert advice(posts.mail, goal, *form, ("textarea", "", {"value": "Lorem ipsum."}), **opened) == "fill('3', 'Bob')"
    assert advice(posts.mail, goal, *form, ("textarea", "", {"value": "Changed."}), **opened) == "click('1')"


def test_what_is_open_by_mistake_is_closed_first():
    reply = 'Find the email by Anna and reply to them with the text "Yes".'
    wrong_form = [
        ("span", "", {"id": "close-forward"}),
        ("span", "", {"id": "send-forward"}),
        ("text", "", {"value": ""}),
    ]
    assert advice(posts.mail, reply, *wrong_form) == "click('1')"
    wrong_mail = [("span", "", {"id": "close-email"}), "Hi.", "Bob to me", ("span", "Reply"), ("span", "Forward")]
    assert advice(posts.mail, reply, *wrong_mail) == "click('1')"
    wrong_receiver = [("span", "", {"id": "close-reply"}), ("span", "", {"id": "send-reply"}), "to: Bob"]
    assert advice(posts.mail, reply, *wrong_receiver, ("textarea", "", {"value": "Yes"})) == "click('1')"
    search = [("span", "", {"id": "search-cancel"}), ("text", "Search", {"id": "search-input", "value": ""})]
    assert advice(posts.mail, reply, *search) == "click('1')"
    assert advice(posts.mail, "Find the email by Anna and click the trash icon.", *MAIL) == "click('1')"


def icons(*names):
    return [("span", "", {"class": name}) for name in names]


def test_an_icon_of_the_right_post_is_clicked_or_looked_for_among_the_others():
    page = ["Ann @ann 1h ago", *icons("reply", "more"), "Bob @bob 2h ago", *icons("reply", "more")]
    assert advice(posts.post, 'For the user @bob, click on the "Reply" button.', *page) == "click('3')"
    goal = 'For the user @bob, click on the "Block" button.'
    assert advice(posts.post, goal, *page) == "click('4')"
    assert advice(posts.post, goal, *page, ("li", "Block")) == "click('5')"


def test_the_menu_of_another_post_is_closed_first():
    goal, menu = 'For the user @bob, click on the "Mute" button.', [("li", "Mute @ann"), ("li", "Report")]
    page = ["Ann @ann 1h ago", *icons("reply", "more"), *menu, "Bob @bob 2h ago", *icons("reply", "more")]
    assert advice(posts.post, goal, *page) == "click('2')"
    reply = 'For the user @bob, click on the "Reply" button.'
    assert advice(posts.post, reply, *page) == "click('2')", "it may lie over the icon"


def test_the_same_icon_on_all_or_some_posts_of_a_user():
    page = ["@ann", *icons("like active"), "@bob", *icons("like"), "@ann", *icons("like"), ("button", "Submit")]
    assert (
        advice(posts.posts_by, 'Click the "Like" button on all posts by @ann and then click Submit.', *page)
        == "click('3')"
    )
    wrong = ["@ann", *icons("like active"), "@bob", *icons("like active"), ("button", "Submit")]
    goal = 'Click the "Like" button on all posts by @ann and then click Submit.'
    assert advice(posts.posts_by, goal, *wrong) == "click('2')", "what was clicked by mistake is clicked again"
    assert (
        advice(posts.posts_by, 'Click the "Like" button on 1 post by @ann and then click Submit.', *page)
        == "click('4')"
    )
