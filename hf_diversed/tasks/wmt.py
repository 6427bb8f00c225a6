"""WMT14, German to English; scored by BLEU."""

from hf_diversed.tasks.base import HubSource, Record, Task


class Wmt(Task):
    """Column `translation`, a mapping with `de` and `en`. The translation is the first line that is not empty; its
    score is the sentence BLEU, which is not comparable with a corpus BLEU."""

    name = "wmt"
    metric = "bleu"
    scorer_modules = ("sacrebleu",)
    source = HubSource("wmt/wmt14", "de-en")
    splits = ("train", "validation", "test")
    columns = ("translation.de", "translation.en")
    text_columns = columns
    score_columns = ("translation.en",)
    max_new_tokens = 128
    stop_strings = ("\nGerman:", "\nTranslate the following German sentence")

    def prompt(self, record: Record) -> str:
        german = record["translation"]["de"]
        return f"Translate the following German sentence into English:\n\nGerman: {german}\n\nEnglish:"

    def reference(self, record: Record) -> str:
        return f" {record['translation']['en'].strip()}"

    def score(self, completion: str, record: Record) -> float:
        try:
            import sacrebleu
        except ImportError as error:
            raise ImportError("translations are scored by sacrebleu; install hf-diversed[train].") from error
        translation = next((line.strip() for line in self.trim(completion).split("\n") if line.strip()), "")
        result = sacrebleu.sentence_bleu(translation, [record["translation"]["en"]])
        return min(result.score / 100, 1.0)  # a perfect match is 100.00000000000004
