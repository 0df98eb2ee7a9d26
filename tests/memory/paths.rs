//! Which addresses are chat completions. Their bytes go to the upstream as they came.

use reqwest::Method;
use serde_json::json;

use crate::memory::rig::{Answer, Rig};
use crate::memory::tools::{ACTIVE, SampleConversation, eventually};

impl Rig {
    /// Sends to this path and no other spelling of it.
    async fn send_to(&self, path: &str, body: &serde_json::Value) -> Answer {
        let request = self.client.request(Method::POST, self.url(path));
        let request = request.header("authorization", "Bearer sk-test");
        let response = request.body(body.to_string()).send().await.unwrap();
        Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.bytes().await.unwrap().to_vec(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_spelling_of_the_path_has_memory_and_is_forwarded_unchanged() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    for path in [
        "/v1/chat/completions",
        "/v1/chat/completions/",
        "/v1//chat/completions",
        "/v1/chat//completions?a=b",
        "//v1/chat/completions",
        "/chat/completions",
        "/chat/completions/",
    ] {
        let answer = rig.send_to(path, &conversation.body(ACTIVE + 1)).await;
        assert_eq!(rig.got().last().unwrap().target, path);
        let memory = answer.memory();
        assert!(memory.starts_with("active"), "{path}: {memory}");
        rig.quiet().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_completion_on_another_path_is_reported_without_memory() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    for (path, memory) in [
        ("/api/v1/chat/completions", "bypass; reason=path"),
        (
            "/openai/deployments/d/chat/completions?api-version=1",
            "bypass; reason=path",
        ),
        ("/v1/completions", ""),
        ("/v1/embeddings", ""),
    ] {
        let answer = rig.send_to(path, &conversation.body(1)).await;
        assert_eq!(answer.memory(), memory, "{path}");
    }
    eventually("the lines", || rig.audit("path").len() == 4).await;
    let lines = rig.audit("path");
    assert_eq!(lines[0]["path"], json!("/api/v1/chat/completions"));
}
