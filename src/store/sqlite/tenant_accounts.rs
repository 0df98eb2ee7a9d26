//! The account that pays for each tenant. These statements name no resource: an account pays for all of them.

use sqlx::query;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::aliases::tenant;
use crate::store::{StoreResult, TenantAccount};

/// All tenants that have a row.
const TENANT_ACCOUNTS: &str = "SELECT tenant, account FROM tenant_accounts";

pub(super) async fn tenant_accounts(
    conn: &mut SqliteConnection,
) -> StoreResult<Vec<TenantAccount>> {
    let rows = query(TENANT_ACCOUNTS).fetch_all(conn).await?;
    let member = |row: &SqliteRow| {
        Ok(TenantAccount {
            tenant: tenant(row, 0)?,
            account: tenant(row, 1)?,
        })
    };
    rows.iter().map(member).collect()
}

/// The account that pays for a tenant (`$1`), if it is not its own.
const ACCOUNT_OF: &str = "SELECT account FROM tenant_accounts WHERE tenant = $1";

pub(super) async fn account_of(
    conn: &mut SqliteConnection,
    own: &[u8; 32],
) -> StoreResult<[u8; 32]> {
    let row = query(ACCOUNT_OF)
        .bind(own.as_slice())
        .fetch_optional(conn)
        .await?;
    row.map_or(Ok(*own), |row| tenant(&row, 0))
}

/// From now on, `$2` pays for the tenant `$1`.
const SET_ACCOUNT: &str = "
INSERT INTO tenant_accounts (tenant, account) VALUES ($1, $2)
ON CONFLICT (tenant) DO UPDATE SET account = excluded.account";

pub(super) async fn set_account(
    conn: &mut SqliteConnection,
    member: TenantAccount,
) -> StoreResult<()> {
    query(SET_ACCOUNT)
        .bind(member.tenant.as_slice())
        .bind(member.account.as_slice())
        .execute(conn)
        .await?;
    Ok(())
}
