//! The errors of the real API: status, wording, type, parameter and code.
//!
//! Builds error values only. [`mod@super::judge`] decides whether a request gets one, and
//! [`super::chat`] sends it. Wordings are close to the real ones, because clients and SDKs match parts
//! of them.

use serde_json::{Value, json};

/// One refusal as the client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status, 400 unless stated otherwise.
    pub status: u16,
    /// `error.message`: for people, and for clients that look for a phrase.
    pub message: String,
    /// `error.type`.
    pub kind: &'static str,
    /// `error.param`: the field at fault; `null` if the real API names none.
    pub param: Option<String>,
    /// `error.code`: the value that clients should decide by; `null` if the real API gives none.
    pub code: Option<&'static str>,
    /// Whether the error has the form of llama.cpp's server: its status as `code`, and no `param`.
    pub llama: bool,
}

impl Refusal {
    /// A 400 of type `invalid_request_error` without parameter or code.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self {
            status: 400,
            message: message.into(),
            kind: "invalid_request_error",
            param: None,
            code: None,
            llama: false,
        }
    }

    /// The answer of llama.cpp's server if a chat template raises an exception, word for word
    /// except for the source position. The status is 500, although the request does not fit the
    /// template.
    pub fn template(exception: &str) -> Self {
        let message = format!(
            "\n------------\nWhile executing CallExpression at line 85, column 32 in source:\n...first %}}\u{21b5}            \
             {{{{- raise_exception('{exception}') }}}}\u{21b5}        {{%- endif %}}...\n           ^\nError: Jinja Exception: {exception}"
        );
        Self {
            llama: true,
            ..Self::invalid(message).status(500, "server_error")
        }
    }

    /// The same refusal with the field at fault.
    #[must_use]
    pub fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// The same refusal with a machine-readable code.
    #[must_use]
    pub fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The same refusal with another status and type, if the request is not at fault.
    #[must_use]
    pub fn status(mut self, status: u16, kind: &'static str) -> Self {
        self.status = status;
        self.kind = kind;
        self
    }

    /// The error of a scripted failure with this status.
    pub fn for_status(status: u16) -> Self {
        match status {
            401 => Self::invalid("Incorrect API key provided.").code("invalid_api_key"),
            403 => {
                Self::invalid("You are not allowed to use this model.").code("model_not_allowed")
            }
            404 => Self::invalid("The model does not exist or you do not have access to it.")
                .code("model_not_found"),
            429 => Self::invalid("Rate limit reached for requests. Please try again later.")
                .code("rate_limit_exceeded"),
            500..=599 => Self::invalid("The server had an error while processing your request."),
            _ => Self::invalid(format!(
                "The scripted provider was told to answer {status}."
            )),
        }
        .status(
            status,
            match status {
                429 => "requests",
                500..=599 => "server_error",
                _ => "invalid_request_error",
            },
        )
    }

    /// The JSON body: `{"error": {message, type, param, code}}` with every key; llama.cpp's has
    /// three.
    pub fn body(&self) -> Value {
        if self.llama {
            return json!({ "error": {
                "code": self.status,
                "message": self.message,
                "type": self.kind,
            }});
        }
        json!({ "error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}
