//! `audit.holdout`: some conversations go without memory, so that what memory saves can be measured.

use diarist_provider::CallerKind;
use serde_json::json;

use crate::memory::resource;
use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

const HOLDOUT: &str = "AUDIT__HOLDOUT";

/// Conversations that a test begins. Their groups differ from run to run, because each database has a pepper of its own:
/// the chance that one group has none of them is 1 in 2³¹.
const CONVERSATIONS: usize = 32;

/// Conversations of each group that are continued after their first turn.
const CONTINUED: usize = 4;

fn conversations() -> Vec<SampleConversation> {
    (0..CONVERSATIONS)
        .map(|number| SampleConversation::new(&format!("person-{number}")))
        .collect()
}

impl Rig {
    /// Plays a turn of each conversation, named where `named` says so. Whether each goes without memory, and whether
    /// observations replaced its messages.
    async fn groups(
        &self,
        conversations: &[SampleConversation],
        turn: usize,
        named: bool,
    ) -> Vec<(bool, bool)> {
        let mut groups = Vec::new();
        for conversation in conversations {
            let name = [("x-diarist-thread", conversation.name.as_str())];
            let headers = if named { &name[..] } else { &[] };
            let answer = self
                .play_turns_as("Bearer sk-test", headers, conversation, turn..=turn)
                .await;
            let line = self.audit_entry(&answer).await;
            let held_out = line["holdout"].as_bool().unwrap();
            if held_out {
                assert_eq!(line["reason"], "holdout");
                assert_eq!(
                    self.last().body,
                    conversation.body(turn).to_string().as_bytes()
                );
            }
            groups.push((held_out, line["memory"] == "active"));
        }
        groups
    }
}

async fn stays_in_its_group(named: bool) {
    let mut rig = Rig::small().await;
    rig.set(HOLDOUT, "0.5");
    rig.restart().await;
    let begun = conversations();
    let first = rig.groups(&begun, 1, named).await;
    let (without, with): (Vec<_>, Vec<_>) = std::iter::zip(begun, first)
        .map(|(conversation, (held_out, _))| (conversation, held_out))
        .partition(|(_, held_out)| *held_out);
    assert!(!without.is_empty() && !with.is_empty());
    let continued = [without, with].map(|group| group.into_iter().take(CONTINUED));
    let (conversations, held_out): (Vec<SampleConversation>, Vec<bool>) =
        continued.into_iter().flatten().unzip();
    for turn in 2..=ACTIVE {
        if turn == ACTIVE / 2 {
            rig.restart().await;
        }
        let groups = rig.groups(&conversations, turn, named).await;
        let same: Vec<bool> = groups.iter().map(|(held_out, _)| *held_out).collect();
        assert_eq!(same, held_out, "turn {turn}");
        if turn == ACTIVE {
            let active = |(held_out, active): &(bool, bool)| *active != *held_out;
            assert!(groups.iter().all(active), "{groups:?}");
        }
    }
    // A conversation of the hold-out costs no call of memory.
    let observed = rig.provider.record_for(CallerKind::Observer);
    for (conversation, held_out) in conversations.iter().zip(&held_out) {
        let name = conversation.canary();
        let shown = observed
            .iter()
            .any(|call| memchr::memmem::find(&call.body, name.as_bytes()).is_some());
        assert_eq!(shown, !held_out, "{name}");
    }
    // It is recorded: when the hold-out ends, memory begins.
    let without = held_out.iter().position(|held_out| *held_out).unwrap();
    rig.set(HOLDOUT, "0");
    rig.restart().await;
    let conversation = &conversations[without];
    let name = [("x-diarist-thread", conversation.name.as_str())];
    let headers = if named { &name[..] } else { &[] };
    let answer = rig
        .play_turns_as(
            "Bearer sk-test",
            headers,
            conversation,
            ACTIVE + 1..=ACTIVE + 3,
        )
        .await;
    assert_eq!(answer.memory(), "active");
    assert_eq!(rig.audit_entry(&answer).await.get("holdout"), None);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_named_conversation_stays_in_its_group() {
    stays_in_its_group(true).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_conversation_without_a_name_stays_in_its_group() {
    stays_in_its_group(false).await;
}

/// What has memory keeps it: without its observations the next request would be read anew.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_conversation_with_memory_keeps_it_when_a_holdout_begins() {
    let mut rig = Rig::small().await;
    let conversations = conversations().into_iter().take(2 * CONTINUED);
    for conversation in conversations.clone() {
        let answer = rig.play_turns(&conversation, 1..=ACTIVE).await;
        assert_eq!(answer.memory(), "active");
    }
    rig.set(HOLDOUT, "0.5");
    rig.restart().await;
    let mut groups = Vec::new();
    for conversation in conversations {
        let answer = rig.play_turns(&conversation, ACTIVE + 1..=ACTIVE + 1).await;
        assert_eq!(answer.memory(), "active");
        let line = rig.audit_entry(&answer).await;
        groups.push(line.get("holdout").cloned());
    }
    // It is in neither group, if it was chosen for the hold-out.
    let is_known = |group: &Option<_>| group.is_none() || *group == Some(json!(false));
    assert!(groups.iter().all(is_known), "{groups:?}");
}

/// Notes about the user's other conversations are memory too.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_of_the_holdout_begins_without_notes_about_others() {
    let mut rig = resource::shared().await;
    rig.learn("u1", &SampleConversation::new("ada")).await;
    rig.set(HOLDOUT, "0.5");
    rig.restart().await;
    let mut groups = Vec::new();
    for conversation in conversations() {
        let headers = resource::as_user("u1", &conversation.name);
        let answer = rig
            .play_turns_as(resource::ME, &headers, &conversation, 1..=1)
            .await;
        let line = rig.audit_entry(&answer).await;
        let has_notes = !resource::peer_memory(&rig.last_body()).is_empty();
        groups.push((line["holdout"].as_bool().unwrap(), has_notes));
    }
    assert!(
        groups
            .iter()
            .all(|(held_out, has_notes)| held_out != has_notes),
        "{groups:?}"
    );
    assert!(
        groups.iter().any(|(held_out, _)| *held_out)
            && groups.iter().any(|(held_out, _)| !held_out)
    );
}
