//! `diarist reproduce` of calls that were answered, with something that could not be used.

use std::path::{Path, PathBuf};
use std::process::Command;

use diarist_provider::{CallerKind, Observer, Options, Reflector, Reply, Script, ScriptInput};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation, eventually};

async fn rig(bundles: &Path) -> Rig {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
        ("MEMORY__BUNDLES", bundles.to_str().unwrap()),
    ];
    Rig::with(Options::default(), &settings).await
}

/// A bundle of this kind. While it is written, its name ends with `.part`.
fn find_bundle(folder: &Path, kind: &str) -> Option<PathBuf> {
    let files = std::fs::read_dir(folder).ok()?;
    let mut paths = files.map(|file| file.unwrap().path());
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.contains(kind) && path.extension().is_none_or(|end| end != "part")
    };
    paths.find(named)
}

/// What the command says of `bundle`.
async fn reproduce(bundle: &Path, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_diarist"));
    command.arg("reproduce").arg(bundle).args(args).env_clear();
    command.env("HOME", "/home/ada").env("KEY", "sk-again");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = output.await.unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let wrong = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stdout}{wrong}");
    stdout
}

fn replying(text: &str) -> impl Fn(&ScriptInput<'_>) -> Reply + use<> {
    let text = text.to_owned();
    move |_| Reply::text(text.clone())
}

fn endless() -> String {
    "* and then the wind turned and nobody said a word\n".repeat(90)
}

/// Answers of one of memory's models, and how a bundle says it was read: the recorded answer for
/// nothing, and that of a model which has come to its senses.
async fn read_again(
    part: CallerKind,
    kind: &str,
    who: &str,
    verdict: &str,
    well: impl Script + 'static,
) {
    let folder = tempfile::tempdir().unwrap();
    let answers = [
        (String::new(), "Nothing in it can be used:\n\n\n"),
        (
            "I am sorry, but no.".to_owned(),
            "Nothing in it can be used:\n\nI am sorry, but no.\n",
        ),
        (
            endless(),
            "It repeats itself without an end:\n\n* and then the wind",
        ),
    ];
    let mut kept = Vec::new();
    for (number, (answer, read)) in answers.into_iter().enumerate() {
        let bundles = folder.path().join(number.to_string());
        let rig = rig(&bundles).await;
        rig.provider.script(part, replying(&answer));
        let conversation = SampleConversation::new("ada");
        if part == CallerKind::Observer {
            // What nobody can observe waits for a long time.
            for turn in 1..=ACTIVE {
                assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
            }
            let waits = "SELECT count(*) FROM jobs WHERE empty_answers = 2 AND leased = 0";
            rig.until_at_least(1, waits).await;
            eventually("a bundle", || find_bundle(&bundles, kind).is_some()).await;
        } else {
            rig.play_turns(&conversation, 1..=2 * ACTIVE).await;
        }
        let path = find_bundle(&bundles, kind).unwrap();
        let calls = rig.provider.record_for(part).len();
        let stdout = reproduce(&path, &["--recorded"]).await;
        assert!(stdout.starts_with(&format!("{who} call of ")), "{stdout}");
        assert!(
            stdout.contains(&format!("\nThen: {verdict} (it ended by stop)\n")),
            "{stdout}"
        );
        assert!(stdout.contains(read), "{stdout}");
        assert_eq!(
            rig.provider.record_for(part).len(),
            calls,
            "nobody is asked"
        );
        kept.push((rig, path));
    }
    let (rig, path) = kept.pop().unwrap();
    rig.provider.script(part, well);
    let base_url = rig.provider.base_url();
    let stdout = reproduce(&path, &["--base-url", &base_url, "--api-key-env", "KEY"]).await;
    assert!(stdout.contains("It is read as "), "{stdout}");
    let call = rig.provider.record_for(part).pop().unwrap();
    assert_eq!(call.credential.reveal(), "Bearer sk-again");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reproduce_command_reads_a_kept_observer_answer_again() {
    let verdict = "the answer could not be used";
    read_again(
        CallerKind::Observer,
        "chunk",
        "Observer",
        verdict,
        Observer::default(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_reproduce_command_reads_a_kept_reflector_answer_again() {
    let verdict = "the answer could not be used";
    read_again(
        CallerKind::Reflector,
        "reflection",
        "Reflector",
        verdict,
        Reflector::default(),
    )
    .await;
}
