//! Finds the user of an application: the name in a header, and whether the operator vouches for it.
//!
//! Any client can write a name into `x-diarist-resource`. Such a name keeps memory apart and grants none: a
//! client that writes another's name gets only memory of what its own messages contain. If the operator named
//! a header and said who sets it ([`Users`]), the name is *trusted*, and the user's conversations may share
//! memory. The two kinds are hashed differently, so that no client can write itself into a trusted name.
//! Called by [`identify`](super::identify).

use http::{HeaderMap, HeaderName, HeaderValue};

use super::super::headers::both_spellings;
use super::name::usable_name;
use super::off_reason::OffReason;
use super::token::Verifier;
use crate::history::{HashPurpose, Pepper};

/// The header that any client may write. It keeps memory apart within its owner.
const RESOURCE_HEADER: HeaderName = HeaderName::from_static("x-diarist-resource");

static CLIENT_RESOURCE: HashPurpose = HashPurpose::new("diarist 2026-11 resource");
static TRUSTED_USER: HashPurpose = HashPurpose::new("diarist 2026-11 vouched resource");

/// A user of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The hash of the name; part of the scope.
    pub id: [u8; 32],
    /// Whether the operator vouches for the name. The same for all that is stored under `id`.
    pub trusted: bool,
}

/// How the operator lets users be recognised.
#[derive(Clone, Debug)]
pub struct Users {
    /// The header with the name.
    pub header: HeaderName,
    /// Why the name is trusted.
    pub proof: Proof,
}

/// Why a name is trusted.
#[derive(Clone, Debug)]
pub enum Proof {
    /// The operator says that no client can set the header.
    TrustedHeader,
    /// The value is a valid token.
    Token(Verifier),
}

/// The user that the request names; `None` if it names none.
///
/// # Errors
/// If the name is not usable, or its token not valid. Without it, users would no longer be kept apart.
pub(super) fn resource(
    headers: &HeaderMap,
    users: Option<&Users>,
    pepper: &Pepper,
) -> Result<Option<Resource>, OffReason> {
    let trusted = users.and_then(|users| {
        let value = single_value(headers.get_all(&users.header).iter())?;
        Some((users, value))
    });
    let is_separate = users.is_none_or(|users| users.header != RESOURCE_HEADER);
    let named = both_spellings(headers, &RESOURCE_HEADER);
    let client_resource = single_value(named).filter(|_| is_separate);
    let client_resource =
        client_resource.map(|value| usable_name(value?).ok_or(OffReason::BadResource));
    let client_resource = client_resource.transpose()?;
    let Some((users, value)) = trusted else {
        return Ok(client_resource.map(|name| Resource {
            id: client_id(name, pepper),
            trusted: false,
        }));
    };
    let name = match &users.proof {
        Proof::TrustedHeader => usable_name(value?)
            .ok_or(OffReason::BadResource)?
            .as_bytes()
            .to_vec(),
        Proof::Token(verifier) => verifier
            .subject(value?)
            .map_err(OffReason::Unverified)?
            .to_bytes(),
    };
    Ok(Some(Resource {
        // The client's own name still keeps memory apart within the trusted user. It cannot open anything.
        id: trusted_id(&name, client_resource.unwrap_or_default(), pepper),
        trusted: true,
    }))
}

fn trusted_id(name: &[u8], client_resource: &str, pepper: &Pepper) -> [u8; 32] {
    let mut hasher = pepper.hasher(&TRUSTED_USER);
    hasher.update(&(name.len() as u64).to_be_bytes());
    hasher.update(name);
    hasher.update(client_resource.as_bytes());
    *hasher.finalize().as_bytes()
}

fn client_id(name: &str, pepper: &Pepper) -> [u8; 32] {
    pepper.hash(&CLIENT_RESOURCE, name.as_bytes())
}

/// The hashes that a user of this `name` can have: as a client writes it, and as the operator lets it be
/// recognised. `issuer` is that of its tokens, unless one is required. For the operator, who knows the name and not the
/// hash.
pub fn ids_of_name(
    users: Option<&Users>,
    name: &str,
    issuer: Option<&str>,
    pepper: &Pepper,
) -> Vec<[u8; 32]> {
    let trusted = match users.map(|users| &users.proof) {
        None => None,
        Some(Proof::TrustedHeader) => Some(trusted_id(name.as_bytes(), "", pepper)),
        Some(Proof::Token(verifier)) => {
            let subject = verifier.subject_of_name(name, issuer);
            Some(trusted_id(&subject.to_bytes(), "", pepper))
        }
    };
    std::iter::once(client_id(name, pepper))
        .chain(trusted)
        .collect()
}

/// The value of a header, if it is there. Two values are an error: nobody can know which one is meant.
fn single_value<'a>(
    mut values: impl Iterator<Item = &'a HeaderValue>,
) -> Option<Result<&'a [u8], OffReason>> {
    let first = values.next()?;
    Some(match values.next() {
        None => Ok(first.as_bytes()),
        Some(_) => Err(OffReason::BadResource),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::identify::token::samples;

    fn resource_in(
        users: Option<&Users>,
        pairs: &[(&str, &str)],
    ) -> Result<Option<Resource>, OffReason> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: HeaderName = name.parse().expect("a name");
            headers.append(name, value.parse().expect("a value"));
        }
        resource(&headers, users, &Pepper::NONE)
    }

    fn by_word(header: &str) -> Users {
        Users {
            header: header.parse().expect("a name"),
            proof: Proof::TrustedHeader,
        }
    }

    fn id(found: Result<Option<Resource>, OffReason>) -> [u8; 32] {
        found.expect("usable").expect("a user").id
    }

    #[test]
    fn a_resource_that_a_client_wrote_is_not_trusted() {
        let users = by_word("x-user");
        let own_resource = [("x-diarist-resource", "alice")];
        for operator in [None, Some(&users)] {
            let found = resource_in(operator, &own_resource)
                .expect("usable")
                .expect("a wall");
            assert!(!found.trusted);
        }
        assert_eq!(resource_in(Some(&users), &[]), Ok(None));
        assert_eq!(resource_in(None, &[("x-user", "alice")]), Ok(None));
    }

    /// Neither spelling reaches the upstream, so a user named by either one has memory of their own.
    #[test]
    fn a_resource_header_with_underscores_counts_too() {
        let hyphens = id(resource_in(None, &[("x-diarist-resource", "alice")]));
        let underscores = id(resource_in(None, &[("x_diarist_resource", "alice")]));
        assert_eq!(hyphens, underscores);
        let both = [
            ("x-diarist-resource", "alice"),
            ("x_diarist_resource", "bob"),
        ];
        assert_eq!(resource_in(None, &both), Err(OffReason::BadResource));
    }

    /// Otherwise a client could write a name that the operator's user would see as its own.
    #[test]
    fn a_client_cannot_claim_the_identity_of_a_trusted_user() {
        let users = by_word("x-user");
        let alice = id(resource_in(Some(&users), &[("x-user", "alice")]));
        let claimed = id(resource_in(
            Some(&users),
            &[("x-diarist-resource", "alice")],
        ));
        assert_ne!(alice, claimed);
        // Nor by a trusted name and a client's name together.
        let split = [("x-user", "ali"), ("x-diarist-resource", "ce")];
        assert_ne!(id(resource_in(Some(&users), &split)), alice);
        let bob = [("x-user", "bob"), ("x-diarist-resource", "alice")];
        assert_ne!(id(resource_in(Some(&users), &bob)), alice);
    }

    #[test]
    fn the_operator_finds_a_user_by_name() {
        let named = |users: Option<&Users>, header| id(resource_in(users, &[(header, "alice")]));
        let plain = named(None, "x-diarist-resource");
        assert_eq!(ids_of_name(None, "alice", None, &Pepper::NONE), [plain]);
        let users = by_word("x-user");
        let trusted = named(Some(&users), "x-user");
        assert_eq!(
            ids_of_name(Some(&users), "alice", None, &Pepper::NONE),
            [plain, trusted]
        );
        let signed = Users {
            header: "x-user".parse().expect("a name"),
            proof: Proof::Token(samples::verifier()),
        };
        let token = samples::token(samples::SECRET, &samples::claims("alice", 300));
        let found = resource_in(Some(&signed), &[("x-user", &token)]);
        assert!(
            ids_of_name(Some(&signed), "alice", Some("open-webui"), &Pepper::NONE)
                .contains(&id(found))
        );
    }

    #[test]
    fn a_resource_within_a_trusted_user_stays_separate() {
        let users = by_word("x-user");
        let alice = ("x-user", "alice");
        let walled = resource_in(Some(&users), &[alice, ("x-diarist-resource", "work")]);
        assert_ne!(id(walled), id(resource_in(Some(&users), &[alice])));
        assert!(walled.expect("usable").expect("a user").trusted);
        // The operator may trust that very header.
        let ours = by_word("x-diarist-resource");
        let found = resource_in(Some(&ours), &[("x-diarist-resource", "alice")]);
        assert!(found.expect("usable").expect("a user").trusted);
    }

    #[test]
    fn an_unusable_user_name_is_refused_and_not_ignored() {
        let users = by_word("x-user");
        let long = "x".repeat(257);
        for bad in ["", " ", "a b", "ä", long.as_str()] {
            let header = [("x-user", bad)];
            assert_eq!(
                resource_in(Some(&users), &header),
                Err(OffReason::BadResource),
                "{bad:?}"
            );
        }
        let twice = [("x-user", "alice"), ("x-user", "bob")];
        assert_eq!(
            resource_in(Some(&users), &twice),
            Err(OffReason::BadResource)
        );
        let wall = [("x-user", "alice"), ("x-diarist-resource", "")];
        assert_eq!(
            resource_in(Some(&users), &wall),
            Err(OffReason::BadResource)
        );
    }

    #[test]
    fn a_user_token_identifies_its_subject_and_a_forged_one_is_refused() {
        let users = Users {
            header: "x-openwebui-user-jwt".parse().expect("a name"),
            proof: Proof::Token(samples::verifier()),
        };
        let named = |token: &str| resource_in(Some(&users), &[("x-openwebui-user-jwt", token)]);
        let first = samples::token(samples::SECRET, &samples::claims("alice", 300));
        let renewed = samples::token(samples::SECRET, &samples::claims("alice", 600));
        assert_ne!(first, renewed);
        assert_eq!(id(named(&first)), id(named(&renewed)));
        let bob = samples::token(samples::SECRET, &samples::claims("bob", 300));
        assert_ne!(id(named(&bob)), id(named(&first)));
        let forged = samples::token(
            "another secret of enough bytes",
            &samples::claims("alice", 300),
        );
        let off = named(&forged).expect_err("no memory");
        assert_eq!(off.name(), "resource_signature");
        assert!(off.is_bypass());
        let plain = named("alice").expect_err("no memory");
        assert_eq!(plain.name(), "resource_malformed");
    }
}
