//! Prices of tokens.

use std::fmt;
use std::str::FromStr;

use super::Tokens;

/// Dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Prompt tokens that were not in the cache.
    pub input: f64,
    /// Prompt tokens read from the cache.
    pub cached: f64,
    /// Tokens of the answer.
    pub output: f64,
}

/// The prices of the conversation's model, and of the model of Observer and Reflector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// The conversation's model.
    pub conversation: Price,
    /// The model that writes memory.
    pub memory: Price,
}

/// A text that is not a price.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write three prices in dollars per million tokens, as INPUT,CACHED,OUTPUT: 2.50,0.25,10")]
pub struct BadPrice;

impl Price {
    /// The cost of one request in dollars; `None` if its tokens are not known. If the cached part of a prompt is not
    /// known, the whole prompt counts as uncached.
    pub fn cost(&self, tokens: &Tokens) -> Option<f64> {
        const MILLION: f64 = 1e6;
        let prompt = tokens.prompt?;
        let cached = tokens.cached.unwrap_or(0).min(prompt);
        let completion = tokens.completion.unwrap_or(0);
        let dollars = (prompt - cached) as f64 * self.input
            + cached as f64 * self.cached
            + completion as f64 * self.output;
        Some(dollars / MILLION)
    }
}

impl FromStr for Price {
    type Err = BadPrice;

    fn from_str(text: &str) -> Result<Self, BadPrice> {
        let number = |text: &str| {
            let number: f64 = text.trim().parse().map_err(|_| BadPrice)?;
            (number.is_finite() && number >= 0.0)
                .then_some(number)
                .ok_or(BadPrice)
        };
        let parts: Vec<&str> = text.split(',').collect();
        let [input, cached, output] = parts[..] else {
            return Err(BadPrice);
        };
        Ok(Self {
            input: number(input)?,
            cached: number(cached)?,
            output: number(output)?,
        })
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "${} input, ${} cached, ${} output",
            self.input, self.cached, self.output
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_is_read_and_applied() {
        let price: Price = "2.50, 0.25,10".parse().unwrap();
        assert_eq!(price.to_string(), "$2.5 input, $0.25 cached, $10 output");
        let tokens = Tokens {
            prompt: Some(1_000_000),
            cached: Some(400_000),
            completion: Some(100_000),
        };
        let cost = price.cost(&tokens).unwrap();
        assert!((cost - (1.5 + 0.1 + 1.0)).abs() < 1e-9, "{cost}");
        let cold = Tokens {
            cached: None,
            ..tokens
        };
        assert!((price.cost(&cold).unwrap() - 3.5).abs() < 1e-9);
        assert_eq!(price.cost(&Tokens::default()), None);
    }

    #[test]
    fn an_invalid_price_is_refused() {
        for text in ["", "1", "1,2", "1,2,3,4", "1,-2,3", "a,b,c", "1,inf,2"] {
            assert_eq!(text.parse::<Price>(), Err(BadPrice), "{text}");
        }
    }
}
