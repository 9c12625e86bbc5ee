"""
The saga of an order: statuses, steps, deadlines, a version, and the inbox.

An order placed before this version has no steps and no deadline: it waits for its
customer indefinitely.
"""

from alembic import op

from towpath.inbox import create_statements

revision = "0004"
down_revision = "0003"

_STATUSES = ("paying", "confirmed", "cancelling", "completed", "returned")

_TABLES = """
alter table shop.orders
    add column payment_method text,
    add column version integer not null default 1;

create table shop.order_steps (
    order_id bigint not null
        constraint order_steps_order_id_fkey references shop.orders (id),
    step text not null,
    at timestamptz not null,
    detail text,
    constraint order_steps_pkey primary key (order_id, step)
);

create table shop.order_deadlines (
    order_id bigint constraint order_deadlines_pkey primary key
        constraint order_deadlines_order_id_fkey references shop.orders (id),
    deadline_at timestamptz not null
);

create index ix_shop_order_deadlines_deadline_at
    on shop.order_deadlines (deadline_at);

-- The orders that a saga has still to end, as is_settled of the service's domain finds.
create view shop.unsettled_orders as
with steps as (
    select order_id, array_agg(step) as taken
      from shop.order_steps
     group by order_id
)
select o.id as order_id, o.status::text as status, o.updated_at
  from shop.orders as o
  left join steps as s on s.order_id = o.id
 where (o.version > 1
        or exists (select from shop.order_deadlines as d where d.order_id = o.id))
   and not coalesce(
           case o.status::text
                when 'completed' then
                    s.taken @> '{stock_sold}'
                    and (o.payment_method is null or s.taken @> '{payment_captured}')
                when 'cancelled' then
                    s.taken && '{stock_rejected,stock_released}'
                    and (o.payment_method is null
                         or s.taken && '{payment_declined,payment_voided}'
                         or s.taken @> '{payment_refunded}')
                when 'returned' then
                    s.taken @> '{stock_returned}'
                    and (o.payment_method is null or s.taken @> '{payment_refunded}')
           end,
           false);
"""

# The statuses are compared as text: a new value of an enum cannot be used in the
# transaction that adds it.
_VIEW = """
create or replace view shop.order_documents as
select o.id as aggregate_id,
       case o.status::text
            when 'placed' then 'OrderPlaced'
            when 'paying' then 'OrderPaymentRequested'
            when 'confirmed' then 'OrderConfirmed'
            when 'paid' then 'OrderPaid'
            when 'cancelling' then 'OrderCancellationRequested'
            when 'cancelled' then 'OrderCancelled'
            when 'completed' then 'OrderCompleted'
            when 'returned' then 'OrderReturned'
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
       || case o.status::text
               when 'paying' then
                   jsonb_build_object('payment_method', o.payment_method)
               when 'confirmed' then jsonb_build_object('confirmed_at', t.updated_at)
               when 'paid' then jsonb_build_object('paid_at', t.updated_at)
               when 'cancelling' then jsonb_build_object('reason', o.cancel_reason)
               when 'cancelled' then jsonb_build_object(
                   'cancelled_at', t.updated_at, 'reason', o.cancel_reason)
               when 'completed' then jsonb_build_object('completed_at', t.updated_at)
               when 'returned' then jsonb_build_object(
                   'returned_at', t.updated_at, 'reason', o.cancel_reason)
               else '{}'
          end as payload
  from shop.orders as o,
       lateral (
           select to_char(o.placed_at at time zone 'UTC', f) as placed_at,
                  to_char(o.updated_at at time zone 'UTC', f) as updated_at
             from (values ('YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) as form(f)) as t;
"""


def upgrade() -> None:
    """Add the statuses, the steps, the deadlines, the version, and the inbox."""
    for status in _STATUSES:
        op.execute(f"alter type shop.order_status add value if not exists '{status}'")
    op.execute(_TABLES)
    op.execute(_VIEW)
    for statement in create_statements("shop"):
        op.execute(statement)


def downgrade() -> None:
    """Refuse: Postgres cannot remove values from an enum, and orders may have them."""
    message = "orders may have statuses that version 0003 does not know"
    raise NotImplementedError(message)
