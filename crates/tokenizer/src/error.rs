/// Why text could not be turned into tokens, or tokens into text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file lacks what a tokenizer or a template needs.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    /// The file's vocabulary cannot be used: the file is at fault.
    #[error("metadata key `{key}`: {problem}")]
    Vocabulary {
        /// The metadata key.
        key: String,
        /// What is wrong with its value.
        problem: String,
    },
    /// A file of a model's folder cannot be used, or is not there.
    #[error("{file}: {problem}")]
    Folder {
        /// Its name.
        file: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A tokenizer of a kind that is not implemented. Another one would give other tokens.
    #[error(
        "metadata key `{key}`: `{found}` is not supported; expected one of: {expected} (docs/models.md \
         says which models have these; another tokenizer would give other tokens)"
    )]
    Unsupported {
        /// The metadata key.
        key: String,
        /// Its value.
        found: String,
        /// The values that are supported.
        expected: String,
    },
    /// The tokenizer has tokens of which the model knows nothing: it is another model's, or has grown.
    #[error(
        "the tokenizer has {tokens} tokens, the model's embedding {rows} rows: token {rows} ({text:?}) \
         has none"
    )]
    NoEmbedding {
        /// Tokens of the tokenizer.
        tokens: usize,
        /// Tokens that the model knows.
        rows: usize,
        /// The first token that it does not know.
        text: String,
    },
    /// A token id that the vocabulary does not have: the caller's fault.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Number of tokens; ids are smaller.
        vocab_size: usize,
    },
    /// The chat template says (by `raise_exception`) that it cannot render these messages: the
    /// caller's fault.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// The chat template is not valid, or failed on these messages: the file is at fault.
    #[error("the model's chat template failed: {0}")]
    Template(String),
    /// Rendering the chat template took more than [`TEMPLATE_FUEL`](crate::TEMPLATE_FUEL).
    #[error(
        "the model's chat template makes more than {} MB of data, or takes more steps than that is \
         worth, of these messages: shorten them; if they are short, the template in the model's file \
         is at fault",
        crate::TEMPLATE_FUEL * crate::FUEL_BYTES / 1_000_000
    )]
    TemplateFuel,
    /// The chat template writes more text than the longest prompt can have.
    #[error(
        "the model's chat template makes more than {limit} bytes of these messages, which have {given}"
    )]
    TemplateText {
        /// Bytes of all messages.
        given: usize,
        /// Most bytes of text.
        limit: usize,
    },
    /// More stop strings, or longer ones, than are accepted: the caller's fault.
    #[error("{problem}: {found}; the limit is {limit}")]
    Stops {
        /// What is out of bounds.
        problem: &'static str,
        /// What the caller gave.
        found: usize,
        /// What is accepted.
        limit: usize,
    },
    /// A stop string of no characters, which would match everywhere: the caller's fault.
    #[error("stop string {index} is empty")]
    EmptyStop {
        /// Its place in the list.
        index: usize,
    },
}
