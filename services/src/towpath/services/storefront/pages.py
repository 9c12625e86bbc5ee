"""
The pages of the storefront, rendered on the server.

========================  ===========================================================
page                      shows
========================  ===========================================================
GET  /                    products with their stock, page by page
GET  /basket              the basket and the checkout
GET  /orders              the orders of this browser's customer, from the read side
GET  /orders/{id}         an order's saga, live, and where the order can be read
GET  /find                orders and products that match the first 8 words of a query
GET  /orders/{id}/saga    the part of an order's page that changes
GET  /orders/{id}/read    the order's status in a target, and a write's delay, as JSON
POST ...                  changes the basket or an order, and redirects to a page
========================  ===========================================================

Only the live parts of the pages need a script, which is part of this package and
fetches these parts repeatedly. Three cookies store the customer, the basket, and the
LSN of the last write. A basket has product ids and quantities only; prices come from
inventory. The pages load nothing from other sites, and a form that another site sends
is refused.
"""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from flask import (
    Blueprint,
    Response,
    current_app,
    make_response,
    redirect,
    render_template,
    request,
    url_for,
)
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import Forbidden

from towpath.schemas.clock import Clock
from towpath.schemas.failure import UnavailableError
from towpath.services.plumbing.http import (
    InvalidInputError,
    NotFoundError,
    ProblemError,
    json_response,
    protect_page,
    refusal_response,
    unavailable_response,
)
from towpath.services.storefront.api import page_of
from towpath.services.storefront.read_side import ReadSide
from towpath.services.storefront.saga import ACTIONS, LANE_WIDTH, LANES, timeline_of
from towpath.services.storefront.shop import Shop, Written

EXTENSION: Final = "towpath.storefront"
PAGE_SIZE: Final = 12
MAX_LINES: Final = 20
MAX_QUANTITY: Final = 99
_COOKIE_S: Final = 30 * 24 * 3600
_CUSTOMER: Final = "customer"
_BASKET: Final = "basket"
_LSN: Final = "written"
# The route that returns JSON.
_READ_BY_SCRIPT: Final = "pages.read"

METHODS: Final = {
    "card": "Card",
    "card-declined": "Card that is declined",
    "card-timeout": "Card whose first answer is lost",
    "card-repeats": "Card that answers twice",
    "card-unreachable": "Card whose bank is unreachable",
    "card-silent": "Card whose bank never answers",
    "": "Pay later",
}
CARRIERS: Final = {
    "": "Delivers",
    "undeliverable": "Cannot deliver",
    "silent": "Does not answer",
}

blueprint = Blueprint(
    "pages", __name__, template_folder="templates", static_folder="static"
)


class PageContext(NamedTuple):
    """The objects that pages need; kept in ``app.extensions[EXTENSION]``."""

    shop: Shop
    reads: ReadSide
    clock: Clock


Basket = dict[uuid.UUID, int]


def parse_basket(cookie: str | None) -> Basket:
    """Read a basket from its cookie; invalid lines are dropped."""
    basket: Basket = {}
    for line in (cookie or "").split("~")[:MAX_LINES]:
        product, _, quantity = line.partition("*")
        try:
            basket[uuid.UUID(product)] = _quantity(quantity)
        except ValueError:
            continue
    return {product: count for product, count in basket.items() if count}


def basket_text(basket: Basket) -> str:
    """Write a basket as the text of its cookie."""
    return "~".join(f"{product}*{count}" for product, count in basket.items())


def _quantity(text: str) -> int:
    """
    Read a quantity; a larger one becomes ``MAX_QUANTITY``.

    Raises:
        ValueError: The text is not a whole number of at most five digits.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= len("99999")):
        message = "must be a whole number of at most five digits"
        raise ValueError(message)
    return min(int(text), MAX_QUANTITY)


@blueprint.before_request
def refuse_other_sites() -> None:
    """Refuse a form that a page of another site sends."""
    origin = request.headers.get("Sec-Fetch-Site", "same-origin")
    if request.method == "POST" and origin not in ("same-origin", "none"):
        raise Forbidden(description="This form was sent from a page of another site.")


@blueprint.after_request
def with_policy(response: Response) -> Response:
    """Restrict the page to files from this site."""
    return protect_page(response, is_static=request.endpoint == "pages.static")


@blueprint.errorhandler(ProblemError)
def on_refusal(error: ProblemError) -> Response:
    """Show a refusal as a page, or as a problem document to the pages' script."""
    if request.endpoint == _READ_BY_SCRIPT:
        return refusal_response(error)
    reasons = [f"{each.field}: {each.reason}" for each in error.errors]
    page = render_template("problem.html", title=error.detail, reasons=reasons)
    return make_response(page, error.status)


@blueprint.errorhandler(UnavailableError)
def on_unavailable(error: UnavailableError) -> Response:
    """Show which service or target is unavailable, as ``on_refusal`` does."""
    response = unavailable_response(error)
    if request.endpoint != _READ_BY_SCRIPT:
        response.set_data(
            render_template("problem.html", title=str(error), reasons=[error.remedy])
        )
        response.mimetype = "text/html"
    return response


@blueprint.app_template_filter("clock_time")
def clock_time(text: str) -> str:
    """Format a document's timestamp, in UTC."""
    at = datetime.fromisoformat(text).astimezone(UTC)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


@blueprint.app_context_processor
def basket_size() -> dict[str, int]:
    """Give every page the number of units in the basket."""
    return {"basket_size": sum(_basket().values())}


@blueprint.get("/")
def products() -> str:
    """Show a page of products."""
    after = _uuid_of(request.args.get("after"))
    page = _context().shop.products(PAGE_SIZE, after)
    return render_template("products.html", page=page, after=after)


@blueprint.post("/basket")
def add_to_basket() -> Response:
    """Add a unit of a product, and show the products again."""
    basket, product = _basket(), _product_of(request.form)
    basket[product] = min(basket.get(product, 0) + 1, MAX_QUANTITY)
    if len(basket) > MAX_LINES:
        message = f"A basket has at most {MAX_LINES} products."
        raise InvalidInputError(message)
    url = url_for("pages.products", after=_uuid_of(request.form.get("after")))
    return _with_basket(url, basket)


@blueprint.post("/basket/lines")
def change_basket() -> Response:
    """Set the quantity of a product; zero removes it."""
    basket, product = _basket(), _product_of(request.form)
    try:
        basket[product] = _quantity(request.form.get("quantity", ""))
    except ValueError as error:
        message = f"The quantity {error}."
        raise InvalidInputError(message) from error
    kept = {product: count for product, count in basket.items() if count}
    return _with_basket(url_for("pages.basket"), kept)


@blueprint.get("/basket")
def basket() -> str:
    """Show the basket and the checkout."""
    lines = _basket_lines()
    return render_template(
        "basket.html",
        lines=lines,
        total=sum((line["price"] for line in lines), Decimal(0)),
        methods=METHODS,
        carriers=CARRIERS,
        customer=_customer(),
        key=uuid.uuid4().hex,
    )


@blueprint.post("/checkout")
def check_out() -> Response:
    """Place an order for the basket; a form that is sent twice places one order."""
    lines = _basket_lines()
    if not lines:
        return redirect(url_for("pages.basket"))  # type: ignore[return-value]
    form, shop = request.form, _context().shop
    key = _uuid_of(form.get("key")) or uuid.uuid4()
    # A form that is sent twice must name the same customer in both requests.
    customer = _customer() or shop.register(
        form.get("name", ""), form.get("email", ""), uuid.uuid5(key, "customer").hex
    )
    carrier = form.get("carrier", "")
    order = {
        "customer_id": str(customer),
        "payment_method": form.get("payment_method") or None,
        "attributes": {"carrier": carrier} if carrier else None,
        "note": form.get("note", "").strip() or None,
        "lines": [
            {
                "product_id": line["product"]["product_id"],
                "quantity": line["quantity"],
                "unit_price": line["product"]["unit_price"],
            }
            for line in lines
        ],
    }
    try:
        written = shop.place(order, key.hex)
    except InvalidInputError as error:
        if all(each.field != "customer_id" for each in error.errors):
            raise
        return _without_customer(error)
    response = _to_order(written)
    _set_cookie(response, _CUSTOMER, str(customer))
    response.delete_cookie(_BASKET)
    return response


@blueprint.get("/orders/<bigint:order_id>")
def order(order_id: int) -> str:
    """Show an order."""
    found = _context().shop.order(order_id)
    return render_template(
        "order.html",
        lsn=request.args.get("lsn"),
        written_ms=request.args.get("written"),
        can_wait=_context().reads.can_wait,
        names=_names_of(found["lines"]),
        **_saga_values(found),
    )


@blueprint.get("/orders/<bigint:order_id>/saga")
def saga(order_id: int) -> str:
    """Render the part of an order's page that changes."""
    found = _context().shop.order(order_id)
    return render_template("saga.html", **_saga_values(found))


@blueprint.get("/orders/<bigint:order_id>/read")
def read(order_id: int) -> Response:
    """Wait for a write in a target; return the order's status there, and the delay."""
    kind, lsn = request.args.get("from", "cache"), request.args.get("lsn") or None
    if kind not in ("cache", "search"):
        message = "The parameter from must be cache or search."
        raise InvalidInputError(message)
    reads = _context().reads
    reads.catch_up(lsn, kind)
    if kind == "cache":
        copy = reads.cache.rows([order_id]).get(order_id)
    else:
        copy = reads.search.find_order(order_id)
    document = {
        "status": None if copy is None else copy.fields.get("status"),
        "after_ms": _since(request.args.get("written")) if lsn else None,
    }
    return json_response(HTTPStatus.OK, document)


@blueprint.post("/orders/<bigint:order_id>/<any(pay, cancel, return):action>")
def change_order(order_id: int, action: str) -> Response:
    """Pay for, cancel or return an order."""
    body = {}
    if action == "pay":
        body["payment_method"] = request.form.get("payment_method") or "card"
    elif reason := request.form.get("reason", "").strip():
        body["reason"] = reason
    return _to_order(_context().shop.change(order_id, action, body))


@blueprint.get("/orders")
def orders() -> str:
    """Show the customer's orders from the read side."""
    customer, reads = _customer(), _context().reads
    if customer is None:
        return render_template("orders.html", orders=(), freshness="")
    freshness = _freshness_of(reads)
    found, _ = page_of(reads, customer, 50, None)
    return render_template("orders.html", orders=found, freshness=freshness)


@blueprint.get("/find")
def find() -> str:
    """Show the orders and products that match each of a query's first 8 words."""
    text = request.args.get("q", "").strip()[:200]
    if not text:
        return render_template("find.html", text="", orders=(), products=())
    index = _context().reads.search
    return render_template(
        "find.html",
        text=text,
        orders=index.find_orders(text, 20).copies,
        products=index.find_products(text, 12).copies,
    )


def _context() -> PageContext:
    context: PageContext = current_app.extensions[EXTENSION]
    return context


def _saga_values(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "order": found,
        "timeline": timeline_of(found),
        "lanes": LANES,
        "lane_width": LANE_WIDTH,
        "actions": ACTIONS.get(found["status"], ()),
        "methods": METHODS,
    }


def _names_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """
    Return the names of products; a product that inventory cannot name keeps its id.

    After a failure, inventory is not queried again, because each request may take
    seconds.
    """
    names: dict[Any, str] = {line["product_id"]: line["product_id"] for line in lines}
    with suppress(UnavailableError):
        for product_id in names:
            with suppress(NotFoundError):
                product = _context().shop.product(product_id)
                names[product_id] = product["name"]
    return names


def _freshness_of(reads: ReadSide) -> str:
    """Wait for the browser's last write, if that is possible; return the outcome."""
    lsn = request.cookies.get(_LSN)
    if lsn is None or not reads.can_wait:
        return "These copies may be a moment old."
    try:
        waited_ms = max(reads.catch_up(lsn, "cache", "search").values())
    except (ProblemError, UnavailableError):
        return "Your last change is not in these copies yet."
    return f"Your last change is in these copies: waited {waited_ms} ms for it."


def _customer() -> uuid.UUID | None:
    return _uuid_of(request.cookies.get(_CUSTOMER))


def _basket() -> Basket:
    return parse_basket(request.cookies.get(_BASKET))


def _basket_lines() -> Sequence[dict[str, Any]]:
    """Read the products of the basket; leave out products that no longer exist."""
    lines = []
    for product_id, quantity in _basket().items():
        try:
            product = _context().shop.product(product_id)
        except NotFoundError:
            continue
        price = quantity * Decimal(product["unit_price"])
        lines.append({"product": product, "quantity": quantity, "price": price})
    return lines


def _product_of(form: MultiDict[str, str]) -> uuid.UUID:
    product = _uuid_of(form.get("product_id"))
    if product is None:
        message = "The form names no product."
        raise InvalidInputError(message)
    return product


def _uuid_of(text: str | None) -> uuid.UUID | None:
    try:
        return uuid.UUID(text) if text else None
    except ValueError:
        return None


def _since(written_ms: str | None) -> int | None:
    """Return the milliseconds since a write, whose time is in epoch milliseconds."""
    if not (written_ms and written_ms.isascii() and written_ms.isdecimal()):
        return None
    # Epoch milliseconds have 13 digits until the year 2286.
    return max(0, _now_ms() - int(written_ms[:13]))


def _now_ms() -> int:
    return round(1000 * _context().clock.now().timestamp())


def _to_order(written: Written) -> Response:
    """Redirect to the page of an order that was written."""
    number = written.document["order_id"]
    more: dict[str, Any] = {}
    if written.lsn is not None:
        more = {"lsn": written.lsn, "written": _now_ms()}
    url = url_for("pages.order", order_id=number, **more)
    response = make_response(redirect(url, HTTPStatus.SEE_OTHER))
    if written.lsn is not None:
        _set_cookie(response, _LSN, written.lsn)
    return response


def _without_customer(error: InvalidInputError) -> Response:
    """Show a refusal; forget a customer whom the shop no longer knows."""
    response = on_refusal(error)
    response.delete_cookie(_CUSTOMER)
    return response


def _with_basket(url: str, basket: Basket) -> Response:
    response = make_response(redirect(url, HTTPStatus.SEE_OTHER))
    _set_cookie(response, _BASKET, basket_text(basket))
    return response


def _set_cookie(response: Response, name: str, value: str) -> None:
    response.set_cookie(
        name, value, max_age=_COOKIE_S, httponly=True, samesite="Strict"
    )
