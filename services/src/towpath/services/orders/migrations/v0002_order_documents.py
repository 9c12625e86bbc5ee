"""
A view that shows each order as its newest event, and a column for the cancel reason.

The view returns, for every order, the event of its current state: the same type and, as
JSON, the same payload. A consumer of the events can therefore be backfilled with orders
whose events no longer exist. The view reads only the orders and their lines, and every
change to them has an event in the same transaction, under the order's row lock.
"""

from alembic import op

revision = "0002"
down_revision = "0001"

_VIEW = """
alter table shop.orders add column cancel_reason text;

create view shop.order_documents as
select o.id as aggregate_id,
       case o.status when 'placed' then 'OrderPlaced'
                     when 'paid' then 'OrderPaid'
                     when 'cancelled' then 'OrderCancelled'
       end as type,
       jsonb_build_object(
           'order_id', o.id,
           'customer_id', o.customer_id,
           'status', o.status,
           'total', o.total::text,
           'currency', o.currency,
           'lines', coalesce(
               (select jsonb_agg(
                           jsonb_build_object(
                               'line_no', l.line_no,
                               'product_id', l.product_id,
                               'quantity', l.quantity,
                               'unit_price', l.unit_price::text)
                           order by l.line_no)
                  from shop.order_lines as l
                 where l.order_id = o.id),
               '[]'),
           'note', o.note,
           'attributes', o.attributes::text,
           'placed_at', t.placed_at,
           'updated_at', t.updated_at)
       || case o.status when 'paid' then jsonb_build_object('paid_at', t.updated_at)
                        when 'cancelled' then jsonb_build_object(
                            'cancelled_at', t.updated_at, 'reason', o.cancel_reason)
                        else '{}'
          end as payload
  from shop.orders as o,
       lateral (
           select to_char(o.placed_at at time zone 'UTC', f) as placed_at,
                  to_char(o.updated_at at time zone 'UTC', f) as updated_at
             from (values ('YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) as form(f)) as t;
"""


def upgrade() -> None:
    """Add the column for the reason, and the view of documents."""
    op.execute(_VIEW)


def downgrade() -> None:
    """Drop the view and the column for the reason."""
    op.execute(
        "drop view shop.order_documents;"
        " alter table shop.orders drop column cancel_reason"
    )
