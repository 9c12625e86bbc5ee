-- The storefront waits for its reads by the slot's position, which every role may see.
-- It gets no right on any table.
\getenv password STOREFRONT_PASSWORD
create role storefront login password :'password';
