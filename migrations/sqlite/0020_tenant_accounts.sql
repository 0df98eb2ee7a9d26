-- Who pays for a tenant: an account is the tenant of the one credential that the upstream checks, and a client can
-- make many tenants of it by headers that the upstream ignores. A tenant without a row is its own account. Those of
-- before have one, so that they are not taken for new; their next request says which account is theirs.
CREATE TABLE tenant_accounts (
    tenant  BLOB NOT NULL PRIMARY KEY CHECK (length(tenant) = 32),
    account BLOB NOT NULL CHECK (length(account) = 32)
) STRICT, WITHOUT ROWID;

INSERT INTO tenant_accounts (tenant, account) SELECT DISTINCT tenant, tenant FROM lineages;

-- A budget is an account's, and there is one for all.
ALTER TABLE spending ADD COLUMN account BLOB NOT NULL DEFAULT x'';
UPDATE spending SET account = tenant;
CREATE INDEX spending_by_account ON spending (day, account, tokens);

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('tenant_accounts', 'tenant_accounts', '1000 1'),
    ('spending', 'spending_by_account', '10000 300 3 1');
ANALYZE sqlite_schema; -- reads them in
