use serde_json::{Map, Value, json};

/// Random JSON schemas of what answers can be held to, each small enough that any answer ends within a
/// few hundred tokens: objects, lists, tuples, texts by length, pattern, format or choice, numbers by
/// range and multiple, constants, alternatives, references, and several types. The same seed gives the
/// same ones.
pub fn schemas(seed: u64) -> impl Iterator<Item = Value> {
    let mut dice = Dice {
        state: seed,
        in_part: false,
    };
    std::iter::repeat_with(move || dice.schema())
}

struct Dice {
    state: u64,
    /// Within the part that refers to itself, and then by a property that may be left out.
    in_part: bool,
}

impl Dice {
    /// A number below `n` (SplitMix64).
    fn below(&mut self, n: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    fn schema(&mut self) -> Value {
        let mut schema = self.object(2);
        self.in_part = true;
        let part = self.part(1);
        self.in_part = false;
        schema["$defs"] = json!({"part": part, "word": self.text()});
        schema
    }

    fn part(&mut self, depth: u32) -> Value {
        match self.below(if depth == 0 { 8 } else { 14 }) {
            0 | 1 => self.text(),
            2 => self.whole(),
            3 => self.number(),
            4 => json!({"type": "boolean"}),
            5 => json!({"enum": [self.word(), self.below(100), null, true, [1, "a"], {"k": 2.5}]}),
            6 => json!({"const": self.word()}),
            7 => json!({"type": ["null", "boolean", "integer"]}),
            8 | 9 => self.object(depth - 1),
            10 => self.list(depth - 1),
            11 => json!({"anyOf": [self.part(depth - 1), self.text(), {"type": "null"}]}),
            12 => json!({"oneOf": [self.whole(), {"type": "string", "maxLength": 4}]}),
            _ => self.reference(),
        }
    }

    fn reference(&mut self) -> Value {
        match self.of(&["word", "part"]) {
            "part" if self.in_part => json!({
                "type": "object",
                "properties": {"again": {"$ref": "#/$defs/part"}},
                "additionalProperties": false,
            }),
            name => json!({"$ref": format!("#/$defs/{name}")}),
        }
    }

    fn word(&mut self) -> String {
        let words = [
            "name", "a b", "größe", "x\"y", "naïve\\", "日本", "tab\t", "it's", "", "Z",
        ];
        self.of(&words).to_owned()
    }

    fn object(&mut self, depth: u32) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for n in 0..=self.below(4) {
            let name = format!("{}{n}", self.word());
            if self.below(3) > 0 {
                required.push(name.clone());
            }
            properties.insert(name, self.part(depth));
        }
        json!({
            "type": "object",
            "title": self.word(),
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        })
    }

    fn list(&mut self, depth: u32) -> Value {
        let least = self.below(3);
        match self.below(3) {
            0 => json!({
                "type": "array",
                "prefixItems": [self.part(depth), self.part(0)],
                "items": false,
                "minItems": least,
            }),
            _ => json!({
                "type": "array",
                "items": self.part(depth),
                "minItems": least,
                "maxItems": least + self.below(3),
            }),
        }
    }

    fn text(&mut self) -> Value {
        let least = self.below(4);
        match self.below(6) {
            0 => json!({"type": "string", "pattern": self.of(&[
                "^[a-z]{1,8}$", "^(yes|no|maybe)$", "^\\d{3}-\\d{4}$", "^[A-Z][a-z]{0,5}( [a-z]{1,4}){0,2}$",
            ])}),
            1 => json!({"type": "string", "format": self.of(&["date", "uuid", "ipv4"])}),
            2 => json!({"type": "string", "enum": [self.word(), "second", "third"]}),
            _ => json!({"type": "string", "minLength": least, "maxLength": least + self.below(9)}),
        }
    }

    fn whole(&mut self) -> Value {
        let low = self.below(2_000) as i64 - 1_000;
        match self.below(4) {
            0 => {
                json!({"type": "integer", "multipleOf": self.of(&[2, 3, 7]), "minimum": 0, "maximum": 900})
            }
            1 => json!({"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 12}),
            _ => {
                json!({"type": "integer", "minimum": low, "maximum": low + self.below(5_000) as i64})
            }
        }
    }

    fn number(&mut self) -> Value {
        let low = self.below(200) as f64 / 8.0 - 10.0;
        match self.below(3) {
            0 => json!({"type": "number", "minimum": 0, "exclusiveMaximum": 1}),
            1 => json!({"type": "number", "minimum": low, "maximum": low + 0.5}),
            _ => json!({"type": "number"}),
        }
    }
}
