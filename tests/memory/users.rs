//! Whose memory it is where the credential does not say it: users that somebody vouches for, and tokens
//! whose subject is the tenant. What does not verify has no memory of anybody, and an answer all the same.

use diarist_provider::Options;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
use serde_json::{Value, json};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation, eventually};

const SECRET: &str = "a secret that only the tests know";

const SMALL: [(&str, &str); 2] = [
    ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
    ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
];

/// What every user of an application shares.
const APP: &str = "Bearer sk-application";

async fn rig(settings: &[(&str, &str)]) -> Rig {
    let all: Vec<_> = SMALL.iter().chain(settings).copied().collect();
    Rig::with(Options::default(), &all).await
}

/// A token in the shape of Open WebUI's, ending `seconds` from now, with a serial number that makes each
/// another one.
fn token(secret: &str, subject: &str, seconds: i64, serial: u32) -> String {
    let now = i64::try_from(get_current_timestamp()).unwrap();
    let claims: Value = json!({
        "sub": subject, "email": format!("{subject}@example.com"), "name": subject, "role": "user",
        "iss": "open-webui", "iat": now, "exp": now + seconds, "jti": serial,
    });
    let key = EncodingKey::from_secret(secret.as_bytes());
    encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_valid_tokens_of_a_signed_user_reach_its_memory() {
    let rig = rig(&[
        ("IDENTITY__RESOURCE__HEADER", "x-openwebui-user-jwt"),
        ("IDENTITY__RESOURCE__SET_BY", "signed"),
        ("IDENTITY__RESOURCE__SECRET", SECRET),
        ("IDENTITY__RESOURCE__ISSUER", "open-webui"),
    ])
    .await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        let serial = u32::try_from(turn).unwrap();
        let token = token(SECRET, "ada", 300, serial);
        let user = [("x-openwebui-user-jwt", token.as_str())];
        rig.play_turns_as(APP, &user, &conversation, turn..=turn)
            .await;
    }
    let next = conversation.body(ACTIVE + 1);
    let as_user = async |token: String| {
        let user = [("x-openwebui-user-jwt", token.as_str())];
        rig.send_as(APP, &user, &next).await
    };
    let ada = as_user(token(SECRET, "ada", 300, 99)).await;
    assert_eq!(ada.memory(), "active");
    rig.quiet().await;
    let rows = "SELECT (SELECT count(*) FROM lineages) + (SELECT sum(requests) FROM lineages)";
    let before = rig.number(rows).await;

    // Another user says word for word the same; they know nothing of what was observed for the first.
    let bob = as_user(token(SECRET, "bob", 300, 1)).await;
    assert_eq!(bob.memory(), "watching");
    rig.quiet().await;
    assert_eq!(rig.number(rows).await, before + 2);

    // What does not hold gets an answer and no memory, neither hers nor any.
    for (sent, reason) in [
        (
            token("a secret of somebody else", "ada", 300, 1),
            "resource_signature",
        ),
        (token(SECRET, "ada", -300, 1), "resource_expired"),
        ("ada".to_owned(), "resource_malformed"),
    ] {
        let answer = as_user(sent).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.memory(), format!("bypass; reason={reason}"));
        assert_eq!(rig.last().body, next.to_string(), "forwarded as it came");
    }
    let twice = token(SECRET, "ada", 300, 1);
    let both = [("x-openwebui-user-jwt", twice.as_str()); 2];
    let answer = rig.send_as(APP, &both, &next).await;
    assert_eq!(answer.memory(), "bypass; reason=bad_resource");
    rig.quiet().await;
    assert_eq!(rig.number(rows).await, before + 2, "nothing was written");
    let line = rig.audited(ACTIVE + 6).await.pop().unwrap();
    assert_eq!(line["reason"], "bad_resource");
}

/// A header that a proxy sets, and the one that any client can write, beside each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_header_gives_no_access_to_memory_of_another_user() {
    let rig = rig(&[
        ("IDENTITY__RESOURCE__HEADER", "x-user"),
        ("IDENTITY__RESOURCE__SET_BY", "trusted-proxy"),
    ])
    .await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns_as(APP, &[("x-user", "ada")], &conversation, 1..=ACTIVE)
        .await;
    let next = conversation.body(ACTIVE + 1);
    let memory = async |headers: &[(&str, &str)]| {
        let answer = rig.send_as(APP, headers, &next).await;
        rig.quiet().await;
        answer.memory().to_owned()
    };
    let bob = ("x-user", "bob");
    let claim = ("x-diarist-resource", "ada");
    assert_eq!(memory(&[claim]).await, "watching");
    assert_eq!(memory(&[bob, claim]).await, "watching");
    assert_eq!(memory(&[bob]).await, "watching");
    assert_eq!(memory(&[]).await, "watching");
    assert_eq!(memory(&[("x-user", "ada")]).await, "active");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_renewed_keeps_its_memory() {
    let rig = rig(&[("IDENTITY__TOKEN__SECRET", SECRET)]).await;
    let conversation = SampleConversation::new("ada");
    let bearer = |secret: &str, subject: &str, seconds, serial| {
        format!("Bearer {}", token(secret, subject, seconds, serial))
    };
    for turn in 1..=ACTIVE {
        let serial = u32::try_from(turn).unwrap();
        let renewed = bearer(SECRET, "ada", 3_600, serial);
        rig.play_turns_as(&renewed, &[], &conversation, turn..=turn)
            .await;
    }
    let next = conversation.body(ACTIVE + 1);
    let send = async |credential: String| {
        let answer = rig.send_as(&credential, &[], &next).await;
        rig.quiet().await;
        answer.memory().to_owned()
    };
    assert_eq!(send(bearer(SECRET, "ada", 7_200, 99)).await, "active");
    assert_eq!(send(bearer(SECRET, "bob", 3_600, 1)).await, "watching");
    // The upstream judges what does not hold. It is a credential as any other, with a memory of its own.
    let forged = bearer("a secret of somebody else", "ada", 3_600, 1);
    assert_eq!(send(forged).await, "watching");
    assert_eq!(send(bearer(SECRET, "ada", -3_600, 1)).await, "watching");
    assert_eq!(send("Bearer sk-no-token".to_owned()).await, "watching");
    let lines = rig.audited(ACTIVE + 5).await;
    let ignored_at = |at: usize| lines[ACTIVE + at]["ignored"].as_str().map(str::to_owned);
    let ignored: Vec<_> = (0..5).map(ignored_at).collect();
    let expected = |flaw: &str| Some(format!("authorization:{flaw}"));
    assert_eq!(
        ignored,
        [None, None, expected("signature"), expected("expired"), None]
    );
    let tenant = |at: usize| lines[at]["tenant"].as_str().unwrap().to_owned();
    assert_eq!(tenant(0), tenant(ACTIVE));
    let others: std::collections::HashSet<_> = (0..5).map(|at| tenant(ACTIVE + at)).collect();
    assert_eq!(others.len(), 5);
}

/// A rotated key is taken over by SIGHUP: what the old one signed is believed no more, and the memory stays.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn token_keys_are_reloaded_without_a_restart() {
    use crate::memory::process::{CONFIG, Program};
    const NEWER: &str = "another secret, the newer of the two";
    let program = Program::start().await;
    let configure = |secret: &str| {
        let section = format!("[identity.token]\nsecret = \"{secret}\"\n");
        program.configure(&format!("{CONFIG}{section}"));
    };
    let anew = async |times: usize| {
        program.hang_up();
        let message = "the configuration was reloaded";
        eventually("the reload", || {
            program.log().matches(message).count() >= times
        })
        .await;
    };
    let recorded = std::sync::atomic::AtomicUsize::new(0);
    let send = async |secret: &str, turn: usize| {
        let bearer = format!("Bearer {}", token(secret, "ada", 3_600, 1));
        let body = SampleConversation::new("ada").body(turn);
        let answer = program.send_as(&bearer, &body).await;
        assert_eq!(answer.status, 200);
        let before = recorded.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        program.wait_recorded(before + 1).await;
        answer.memory().to_owned()
    };
    configure(SECRET);
    anew(1).await;
    for turn in 1..=ACTIVE {
        send(SECRET, turn).await;
    }
    assert_eq!(send(SECRET, ACTIVE + 1).await, "active");
    configure(NEWER);
    assert_eq!(
        send(SECRET, ACTIVE + 2).await,
        "active",
        "not before the signal"
    );
    anew(2).await;
    assert_eq!(
        send(NEWER, ACTIVE + 3).await,
        "active",
        "the subject is the same"
    );
    let old = send(SECRET, ACTIVE + 3).await;
    assert_eq!(old, "watching", "a credential as any other");
    // What cannot be read changes nothing.
    program.configure(&format!(
        "{CONFIG}[identity.token]\nkeys_file = \"/nowhere\"\n"
    ));
    program.hang_up();
    eventually("the refusal", || program.log().contains("/nowhere")).await;
    assert_eq!(send(NEWER, ACTIVE + 4).await, "active");
}
