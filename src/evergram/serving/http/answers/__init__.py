"""What the service answers: `schemas` of it, as JSON (`json_answers`) or as an Arrow stream
(`arrow_answers`), and how an error is answered (`errors`)."""
