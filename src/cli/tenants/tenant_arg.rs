//! How the command line names a tenant: by the name in lists and audit, or by its key from a variable or from
//! standard input.
//!
//! A key is hashed with the pepper of the database. It is never an argument, since arguments are in the history of the shell and in the
//! list of processes.

use std::collections::BTreeMap;
use std::io::BufRead as _;

use anyhow::{Context as _, bail};
use zeroize::Zeroizing;

use crate::history::{Pepper, Scope};
use crate::llm::CredentialHeaders;
use crate::proxy::identify::tenant_of_key;
use crate::store::{Alias, SqliteStore, TenantRow, Tenants as _};

/// Hexadecimal digits of a tenant's name.
const DIGITS: usize = 12;

/// Input that is longer is not a key.
const LONGEST_KEY: u64 = 16 * 1024;

/// One argument.
#[derive(Debug)]
pub(super) enum TenantArg {
    /// A name from the list.
    Label(String),
    /// A key as the value of a header.
    Key(KeyInHeader),
}

impl TenantArg {
    /// Parses an argument. A key is read from its place; clients send it in `header`.
    pub(super) fn parse(
        argument: &str,
        header: &str,
        environment: &BTreeMap<String, String>,
    ) -> anyhow::Result<Self> {
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if argument.len() == DIGITS && argument.bytes().all(hex) {
            return Ok(Self::Label(argument.to_owned()));
        }
        let key = if argument == "-" {
            let mut line = Zeroizing::new(String::new());
            let input = std::io::stdin().lock();
            std::io::Read::take(input, LONGEST_KEY)
                .read_line(&mut line)
                .context("standard input cannot be read")?;
            line
        } else if let Some(variable) = argument.strip_prefix("env:") {
            let Some(key) = environment.get(variable) else {
                bail!(
                    "the variable {variable} is not set: env:NAME names the variable that holds the key"
                );
            };
            Zeroizing::new(key.clone())
        } else {
            // The argument is not shown: it may be a key.
            bail!(
                "an argument is neither a name ({DIGITS} hexadecimal digits, see `diarist tenants`) nor \
                 env:NAME nor -. If it is a key, it is now in the history of your shell: remove it there. Put \
                 the key into a variable and write env:NAME, or pipe it in and write -"
            );
        };
        let key = KeyInHeader {
            header: header.to_owned(),
            key: Zeroizing::new(key.trim().to_owned()),
        };
        if key.tenant(&Pepper::NONE).is_none() {
            bail!("{argument} holds no key that the header {header} could carry");
        }
        Ok(Self::Key(key))
    }
}

/// A key, and the header in which clients send it.
pub(super) struct KeyInHeader {
    header: String,
    key: Zeroizing<String>,
}

impl std::fmt::Debug for KeyInHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyInHeader({})", self.header)
    }
}

impl KeyInHeader {
    fn tenant(&self, pepper: &Pepper) -> Option<[u8; 32]> {
        tenant_of_key(&self.header, &self.key, pepper)
    }
}

/// Refuses a key for a header by whose value the server tells nobody apart.
pub(super) fn check_header(
    arguments: &[&TenantArg],
    header: &str,
    listed: &CredentialHeaders,
) -> anyhow::Result<()> {
    let has_key = arguments
        .iter()
        .any(|argument| matches!(argument, TenantArg::Key(_)));
    if has_key && !header.parse().is_ok_and(|name| listed.contains(&name)) {
        bail!(
            "the header {header} is not in identity.credentials, so its value makes no tenant: name the header that \
             clients send their key in"
        );
    }
    Ok(())
}

/// All tenants and aliases in the database.
pub(super) struct TenantDirectory {
    rows: Vec<TenantRow>,
    pub(super) aliases: Vec<Alias>,
}

impl TenantDirectory {
    pub(super) async fn load(store: &SqliteStore) -> anyhow::Result<Self> {
        let mut rows = store.tenants().await?;
        rows.sort_by_key(|row| std::cmp::Reverse(row.last_ms));
        let aliases = store.aliases().await?;
        Ok(Self { rows, aliases })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.aliases.is_empty()
    }

    pub(super) fn row(&self, tenant: &[u8; 32]) -> Option<&TenantRow> {
        self.rows.iter().find(|row| row.tenant == *tenant)
    }

    /// Each tenant once: those with memory, the latest first, then those that only have an alias.
    pub(super) fn all_tenants(&self) -> Vec<[u8; 32]> {
        let mut tenants: Vec<[u8; 32]> = self.rows.iter().map(|row| row.tenant).collect();
        let aliases = self.aliases.iter();
        for tenant in aliases.flat_map(|alias| [alias.name, alias.tenant]) {
            if !tenants.contains(&tenant) {
                tenants.push(tenant);
            }
        }
        tenants
    }

    /// The tenant that an argument names.
    pub(super) fn tenant(&self, argument: TenantArg, pepper: &Pepper) -> anyhow::Result<[u8; 32]> {
        let label = match argument {
            TenantArg::Key(key) => {
                return key
                    .tenant(pepper)
                    .context("the header cannot carry the key");
            }
            TenantArg::Label(label) => label,
        };
        let mut found = self.all_tenants();
        found.retain(|tenant| Scope::format_tenant_label(tenant) == label);
        match found.as_slice() {
            [tenant] => Ok(*tenant),
            [] => bail!(
                "nothing is remembered of a tenant {label}. If its key was not used yet, give the key with \
                 env:NAME or -"
            ),
            _ => bail!("several tenants have the name {label}: give the key with env:NAME or -"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(argument: &str) -> anyhow::Result<TenantArg> {
        let environment = BTreeMap::from([
            ("OLD_KEY".to_owned(), "sk-old\n".to_owned()),
            ("EMPTY".to_owned(), " ".to_owned()),
        ]);
        TenantArg::parse(argument, "authorization", &environment)
    }

    #[test]
    fn a_tenant_argument_is_a_name_or_an_environment_variable() {
        let Ok(TenantArg::Label(shown)) = parse("98e388831bde") else {
            panic!("a name");
        };
        assert_eq!(shown, "98e388831bde");
        let Ok(TenantArg::Key(key)) = parse("env:OLD_KEY") else {
            panic!("a key");
        };
        let pepper = Pepper::new(&[1; 32]);
        let tenant = key.tenant(&pepper);
        assert!(!format!("{key:?}").contains("sk-old"));
        // As a client presents it.
        assert_eq!(
            tenant,
            tenant_of_key("authorization", "Bearer sk-old", &pepper)
        );
        assert_ne!(tenant, tenant_of_key("api-key", "sk-old", &pepper));
    }

    #[test]
    fn an_argument_that_may_be_a_key_is_refused_and_not_repeated() {
        for key in [
            "sk-proj-abcdef0123456789",
            "0123456789abcdef0123456789abcdef",
            "98E388831BDE",
            "98e388831bd",
            "Bearer x",
            "",
        ] {
            let error = parse(key).expect_err("a refusal").to_string();
            assert!(error.contains("history of your shell"), "{error}");
            assert!(key.is_empty() || !error.contains(key), "{error}");
        }
        for nothing in ["env:NO_SUCH", "env:EMPTY", "env:"] {
            assert!(parse(nothing).is_err(), "{nothing}");
        }
    }
}
