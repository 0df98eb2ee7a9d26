//! A scripted chat-completions provider, as strict as the real ones: the judge in tests, the other side in the demo.
