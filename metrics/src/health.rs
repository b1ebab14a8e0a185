//! What a probe is told: fine, or what is wrong.

use serde_json::{Value, json};

/// The health of one part of a process at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Which part.
    pub part: String,
    /// What is wrong, each a whole sentence; empty if nothing is.
    pub problems: Vec<String>,
    /// What an operator should know although work is done, each a whole sentence.
    pub warnings: Vec<String>,
}

impl Health {
    /// A part with which nothing is wrong yet.
    pub fn of(part: impl Into<String>) -> Health {
        Health { part: part.into(), problems: Vec::new(), warnings: Vec::new() }
    }

    /// Notes a problem if it is there.
    pub fn unless(mut self, is_fine: bool, problem: impl FnOnce() -> String) -> Health {
        if !is_fine {
            self.problems.push(problem());
        }
        self
    }

    /// Notes what an operator should know; the part stays fine.
    pub fn warn(mut self, warnings: impl IntoIterator<Item = String>) -> Health {
        self.warnings.extend(warnings);
        self
    }

    /// Nothing is wrong.
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Whether all parts are fine, and the JSON that says so.
pub(crate) fn render(parts: &[Health]) -> (bool, String) {
    let is_ok = parts.iter().all(Health::is_ok);
    let listed: Vec<Value> = parts
        .iter()
        .map(|health| {
            let (part, problems, warnings) = (&health.part, &health.problems, &health.warnings);
            json!({ "part": part, "ok": health.is_ok(), "problems": problems, "warnings": warnings })
        })
        .collect();
    let body = json!({ "ok": is_ok, "parts": listed });
    (is_ok, format!("{body}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_part_spoils_the_whole_and_says_why() {
        let fine = Health::of("replica 1").unless(true, || unreachable!("nothing is wrong"));
        let bad = Health::of("replica 2").unless(false, || "no leader is known".to_owned());
        assert!(render(std::slice::from_ref(&fine)).0);
        let worried = Health::of("replica 3").warn(["the disk fills".to_owned()]);
        let (is_ok, body) = render(&[worried]);
        assert!(is_ok && body.contains("the disk fills"), "a warning is no problem: {body}");
        let (is_ok, body) = render(&[fine, bad]);
        assert!(!is_ok);
        let body: Value = serde_json::from_str(&body).expect("it is JSON");
        assert_eq!(body["parts"][0]["ok"], true);
        assert_eq!(body["parts"][1]["problems"][0], "no leader is known");
    }
}
