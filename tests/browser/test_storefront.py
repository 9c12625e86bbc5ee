"""
The storefront in a real browser: make browser-test.
"""

import uuid

import pytest

from support import databases
from support.browser import ENTER, TAB, browser
from support.rig import Rig
from support.storefront import add_products, whole_store
from support.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def store(stack, tmp_path_factory):
    """Provide a storefront whose shop has products."""
    stack.up("postgres", "kafka", "redis", "opensearch")
    name = f"t_{uuid.uuid4().hex[:12]}"
    with databases.fresh_database(stack, name) as dsn:
        rig = Rig(dsn, stack.kafka, name, tmp_path_factory.mktemp("store"))
        with whole_store(rig, stack) as made:
            add_products(rig, 30)
            yield made
        rig.close()


@pytest.fixture
def window(store):
    """Provide a window that shows the products; the browser must log nothing."""
    with browser() as made:
        made.emulate()
        made.open(store.address)
        yield made
        assert [] == made.complaints()


def await_texts(window, *texts):
    """Wait until the page shows all of these texts."""
    until(
        lambda: all(text in window.text() for text in texts), f"the page shows {texts}"
    )


def fill_basket(window):
    """Put two products into the basket, and show it."""
    window.follow("li.card:nth-child(3) button")
    window.follow("#next-page")
    window.follow("li.card:nth-child(2) button")
    window.follow("#basket-link")


def test_a_visitor_places_an_order_watches_its_saga_and_returns_it(window):
    """
    The page shows the saga to its end, and then the compensation, without a reload.
    """
    fill_basket(window)
    await_texts(window, "Brass lantern No. 1", "Total")
    window.follow("#check-out")
    await_texts(window, "completed", "settled", "Parcel dispatched", "Stock sold")
    await_texts(window, "completed, your write was visible after")
    steps = window.run("return [...document.querySelectorAll('.drawing time')].length")
    window.follow("#return")
    await_texts(window, "returned", "settled", "Payment refunded", "Stock taken back")
    await_texts(window, "returned, your write was visible after")

    assert 7 == steps
    assert window.run("return document.querySelectorAll('.dot.awaited').length") == 0


def test_a_declined_payment_is_shown_and_the_stock_is_released(window):
    """
    Every step of the compensation is on the page, with the reason.
    """
    fill_basket(window)
    window.choose("payment_method", "card-declined")
    window.follow("#check-out")
    await_texts(window, "Payment declined", "the card was declined", "Stock released")
    await_texts(window, "cancelled", "settled")
    window.follow("nav a[href='/orders']")
    await_texts(window, "My orders", "cancelled", "Your last change is in these copies")


def test_a_waiting_order_is_paid_and_cancelled_by_its_buttons(window):
    """
    Awaited steps are shown as awaited until the customer acts.
    """
    fill_basket(window)
    window.choose("payment_method", "")
    window.choose("carrier", "silent")
    window.follow("#check-out")
    await_texts(window, "waits for its payment", "Stock reserved")
    window.follow("#pay")
    await_texts(window, "Handing over the parcel …")
    window.follow("#cancel")
    await_texts(
        window, "cancelled", "settled", "Shipment cancelled", "Payment refunded"
    )


def test_the_keyboard_alone_places_an_order(window):
    """
    The first Tab stop skips the navigation; every stop has a visible outline.
    """
    window.key(TAB)
    first = window.run("return document.activeElement.textContent")
    fill_basket(window)
    outlines = []
    window.run("document.querySelector('.lines input').focus()")
    for _ in range(20):
        window.key(TAB)
        outlines.append(
            window.run("return getComputedStyle(document.activeElement).outlineStyle")
        )
        if window.run("return document.activeElement.id") == "check-out":
            break
    window.key(ENTER)
    await_texts(window, "completed", "settled")

    assert ("Skip to the content", {"solid"}) == (first, set(outlines))


# The texts whose contrast with their background, as WCAG defines it, is too low.
CONTRAST = """
const luminance = rgb => {
  const part = rgb.map(v => v / 255).map(
    v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
};
const parse = text => text.match(/[0-9.]+/g).map(Number);
const behind = element => {
  for (let e = element; e; e = e.parentElement) {
    const color = parse(getComputedStyle(e).backgroundColor);
    if (color.length < 4 || color[3] === 1) return color.slice(0, 3);
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const found = [];
while (walker.nextNode()) {
  const text = walker.currentNode.textContent.trim();
  const element = walker.currentNode.parentElement;
  if (!text || !element.checkVisibility() || element.closest("option")) continue;
  const one = luminance(parse(getComputedStyle(element).color).slice(0, 3));
  const other = luminance(behind(element));
  const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (contrast < 4.5) found.push(`${text}: ${contrast.toFixed(2)}`);
}
return found;
"""
# Controls that a screen reader could not name.
UNNAMED = """
const named = e => e.ariaLabel || e.labels?.length || e.textContent.trim();
const parts = [...document.querySelectorAll("a, button, input, select")];
return parts.filter(e => e.type !== "hidden" && !named(e)).map(e => e.outerHTML);
"""
TOO_WIDE = """
return document.documentElement.scrollWidth > document.documentElement.clientWidth
"""


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desktop"])
def test_every_page_is_readable_and_names_its_controls(window, store, is_dark, width):
    """
    Contrast is at least 4.5 to 1, each control has a name, and nothing is cut off.
    """
    done = store.saga.settled(store.saga.check_out(), "completed")["order_id"]
    failed = store.saga.check_out("card-declined")
    store.saga.settled(failed, "cancelled")
    window.emulate(is_dark=is_dark, width=width)
    window.follow("li.card:nth-child(3) button")
    pages = ["/", "/basket", f"/orders/{done}", f"/orders/{failed}", "/orders"]
    findings = []
    for path in [*pages, "/find?q=completed"]:
        window.open(store.address + path)
        for script in (CONTRAST, UNNAMED):
            findings += [(path, one) for one in window.run(script)]
        if window.run(TOO_WIDE):
            findings.append((path, "wider than the screen"))

    assert [] == findings
