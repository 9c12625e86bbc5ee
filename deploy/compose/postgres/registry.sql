-- The schema registry keeps its schemas in a database of its own.
create database registry;
