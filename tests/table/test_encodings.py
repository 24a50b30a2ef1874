"""Tables in the code pages of old programs: each is read right, or refused with a remedy."""

import re

import pytest

from tests.table.messy_tables import LABELS, TEXTS, cells
from twinset.errors import InputError
from twinset.progress import Silent
from twinset.run.request import Source
from twinset.run.story import read_source
from twinset.table.read import read_frame

# By language, its code page of Windows and sentences with the letters that the page is there for.
SENTENCES = {
    "French": (
        "cp1252",
        "L’hôtel était très agréable, le déjeuner à la française aussi.",
        "Où êtes-vous allés cet été ? La chambre coûte 80 € par nuitée, naïf que j’étais.",
    ),
    "German": (
        "cp1252",
        "Das Frühstück war großartig, die Zimmer schön und die Gäste nett.",
        "Später hörten wir Geräusche auf der Straße. Für 90 € völlig übertrieben, „na ja“.",
    ),
    "Spanish": (
        "cp1252",
        "La habitación era pequeña y ruidosa, ¡qué lástima! No volveremos el próximo año.",
        "El jardín y la piscina están fríos, según el niño. ¿Cuánto costó? También pagué 2ª cama.",
    ),
    "Portuguese": (
        "cp1252",
        "O pequeno-almoço não é bom, mas a vista é ótima e as pessoas são simpáticas.",
        "São Paulo tem opções melhores. Três noites por 90 €, à beira do cartão de crédito.",
    ),
    "Danish": (
        "cp1252",
        "Værelset var småt og støjende, men køkkenet var på højde med prisen.",
        "Åbent hele året, børnene elskede øen. Vi kører måske derhen igen, så længe råd er.",
    ),
    "Finnish": (
        "cp1252",
        "Hyvä sijainti, mutta hissi ei päässyt ylös. Äänet häiritsivät yöllä.",
    ),
    "Icelandic": (
        "cp1252",
        "Þetta var gott hótel, en það er dýrt og við fórum ekki út. Börnin þökkuðu góðan mat.",
        "Ég ætla að koma aftur á næsta ári með fjölskylduna, því útsýnið er æðislegt.",
    ),
    "Polish": (
        "cp1250",
        "Hotel był bardzo ładny, obsługa pomocna, a śniadanie było za małe.",
        "Pokój był głośny, już tu nie przyjedziemy. Za tę cenę źle, dzieci nie mogły się kąpać.",
    ),
    "Czech": (
        "cp1250",
        "Personál byl ochotný a pokoje čisté, ale snídaně byla malá. Výhled úžasný.",
        "Blízko centra města, doprava je snadná. Bazén byl studený, děti měly žízeň, příště ne.",
    ),
    "Hungarian": (
        "cp1250",
        "A szálloda szép volt, a személyzet segítőkész, a kilátás gyönyörű, de a szűk szoba zajos.",
        "Az idő hűvös volt, a gyerekek nem tudtak fürdeni, sőt fűtés sem volt. Többet nem jövünk.",
    ),
    "Romanian": (
        "cp1250",
        "Hotelul a fost foarte frumos şi curat, priveliştea minunată, camera mică şi zgomotoasă.",
        "Aproape de centrul oraşului, ajungi uşor. Preţul e bun, copiii au jucat până târziu.",
    ),
    "Croatian": (
        "cp1250",
        "Sobe su čiste, doručak slab. Soba je bila mala i bučna, više nećemo doći. Šteta!",
        "Lako se dođe u središte. Djeca se žale, ručali smo negdje drugdje, noću gužva i žamor.",
    ),
    "Russian": (
        "cp1251",
        "Отель очень хороший, персонал вежливый, номера чистые.",
        "Завтрак был скудный, но вид прекрасный. Рядом с центром города, добраться легко.",
    ),
    "Ukrainian": (
        "cp1251",
        "Готель дуже гарний, їжа смачна, а номери чисті. Близько до центру міста.",
    ),
    "Greek": (
        "cp1253",
        "Το ξενοδοχείο ήταν πολύ ωραίο και το προσωπικό ευγενικό.",
        "Το πρωινό ήταν λίγο, αλλά η θέα υπέροχη. Κοντά στο κέντρο της πόλης.",
    ),
    "Turkish": (
        "cp1254",
        "Personel çok yardımcı oldu. Kahvaltı yeterli değildi, ama manzara harikaydı.",
        "Şehir merkezine yürüyüş mesafesinde, ulaşım kolay. İyi değil, çocuklar ağladı.",
    ),
    "Arabic": (
        "cp1256",
        "كان الفندق جميلا جدا والموظفون لطفاء والغرف نظيفة. الإفطار قليل لكن المنظر رائع",
    ),
    "Lithuanian": (
        "cp1257",
        "Viešbutis buvo gražus, o kambariai švarūs. Pusryčiai buvo menki, bet įspūdis geras.",
        "Kambarys buvo mažas ir triukšmingas, daugiau nevažiuosime. Ačiū už ąžuolinę lovą, tėvai.",
    ),
    "Latvian": (
        "cp1257",
        "Viesnīca bija ļoti skaista, istabas tīras. Brokastis bija niecīgas, trokšņaini kaimiņi.",
        "Skats brīnišķīgs, netālu no pilsētas centra. Personāls laipns, nebrauksim šeit.",
    ),
}
# Other encodings of these languages, none of which a table of today should have.
OTHERS = {
    "mac_roman": ("French", "German", "Spanish", "Portuguese", "Danish", "Finnish"),
    "cp850": ("French", "German", "Spanish", "Portuguese", "Danish", "Icelandic"),
    "cp437": ("German", "Finnish"),
    "mac_latin2": ("Polish", "Czech", "Hungarian"),
    "cp852": ("Polish", "Czech", "Hungarian", "Romanian", "Croatian"),
    "iso8859_2": ("Polish", "Czech"),
    "mac_turkish": ("Turkish",),
    "cp857": ("Turkish",),
    "iso8859_4": ("Latvian", "Lithuanian"),
    "cp775": ("Latvian", "Lithuanian"),
    "koi8_r": ("Russian",),
    "cp866": ("Russian",),
    "iso8859_5": ("Russian", "Ukrainian"),
    "mac_cyrillic": ("Russian",),
    "cp737": ("Greek",),
    "iso8859_6": ("Arabic",),
}
OF_ASIA = {
    "cp1255": "המלון היה יפה מאוד, הצוות אדיב והחדרים נקיים. ארוחת הבוקר מעטה אבל הנוף נהדר",
    "cp874": "โรงแรมสวยมาก พนักงานใจดี ห้องพักสะอาด อาหารเช้าน้อยไปหน่อย",
    "gb18030": "这家酒店非常好，服务员很热情，房间也很干净。早餐太少了，但是风景很美。",
    "cp936": "非常好的电影",  # half of these bytes are UTF-8
    "big5": "這家飯店非常好，服務員很熱情，房間也很乾淨。早餐太少了，但是風景很美。",
    "cp949": "호텔이 아주 좋았고 직원들이 친절했습니다. 아침 식사는 부족했지만 경치가 좋았어요.",
    "cp932": "ホテルはとても良くて、スタッフも親切でした。朝食は少なかったが。",
}
# What a table has that is ASCII but for a few letters. Each alone decides nothing else.
FEW = (
    "€ 5|33,37 €|€5|£5|£5.99|café|naïve|naïf|Noël|Citroën|résumé|señor|façade|Zürich|Köln|Straße"
    "|Malmö|Århus|Brontë|El Niño|déjà vu|5°C|20 m²|½ hour|the “best”|it’s|wait…|São Paulo|Curaçao"
    "|1º|PARÍS|2ème|Søren|£3 in São Paulo, at Søren’s café"
).split("|")
# Inflected words of languages that mostly have Western letters: a few hundred each, as in a table.
INFLECTED = {
    "Hungarian": (
        "cp1250",
        {
            "szép hűvös föld gyümölcs személyzet fürdő idő erdő nő népszerű segítőkész": " ről "
            "ből től hez nek ben ért ig",
            "szállás szobájá ház város ajtó állomás út ágy kiváló vár": " ról ból tól hoz nak ban",
        },
    ),
    "Estonian": (
        "cp1257",
        {
            "mäe õhtu tüdruku söögi külma põllu hommikusöögi väikese jõe sõbra lõuna võõra nädala "
            "päeva töö köögi kõrge pääsu režiimi": "s st sse l lt le ks ni na ta ga"
        },
    ),
    "Kurdish": (
        "cp1254",
        {
            "çêj şîrîn nîşan pêşî dîtin gû hêsan înglîz mêvan pirtûk rûn xanî çav dêr kûr rê nû "
            "çîrok bîr hêvî zû": " an ê ên a"
        },
    ),
}
# Western for several reasons, of which none is a word of another language.
WESTERN = (
    "don´t|it´s|I´m|can´t|geht´s|café´s|that´s|isn´t",
    "90×200|140×200|80×80|180×200|Ø30|Ø10|Ø8|20×30|5×4",
    "Zu\xadsam\xadmen\xadarbeit|Ver\xadtrag|Ge\xadrät|für|schön|größer",
    "10µg|5 µg|µ|20µl|3µm|CO²|x²|kg/m³|10³|12m²|½l",
    "müller99|josé_m|jörg77|josé12|JoséMaría|McKäse|iPhöne",
    "GROßE|STRAßE|FÜR|SCHÖN|MÜLLER|STOßEN|ÄPFEL",
    "Björn|Jörg|Günter|René|André|Inés|Ángel|Óscar|Raúl|Göttingen|Cádiz",
    "Mª|Nº|1ª|Dª|Müller|Köln|Zürich|García|José|café|résumé|Málaga",
    "Müller|Schröder|Jürgen|García|José|Hernández|Pérez|Martínez|López|Núñez",
    "Šimon|Žižek|Željko|Miloš",
    "väga|töö|õhtu|külm|söök|jõgi|mägi|õde|põld|tüdruk|täna|küla|žanr",
)
# Encodings of Unix, next to the pages of Windows that they resemble.
OF_UNIX = [
    ("iso8859_15", "We paid 5 € for the room"),
    ("iso8859_15", "Le cœur de la ville, déjà. Une sœur, 80 €, du bœuf"),
    ("iso8859_7", f"Άριστη και άνετη, 50 €. {SENTENCES['Greek'][1]}"),
]
CASES = [(language, page) for language, (page, *_) in SENTENCES.items()]
CASES += [(language, page) for page, languages in OTHERS.items() for language in languages]
REMEDY = re.compile(r"encoding is unclear.*\. Name it with `encoding`")


def texts_of(tmp_path, texts: list[str], page: str) -> list[str] | None:
    """Return the texts of a table as they are read, or None if it is refused with the remedy."""
    path = tmp_path / "t.csv"
    path.write_bytes(cells(texts, sep=";", end="\r\n").encode(page))
    assert b"&#" not in path.read_bytes()
    try:
        records = read_source(Source(str(path)), Silent(), None)[1]
    except InputError as error:
        assert REMEDY.search(str(error)), error
        return None
    return list(records.texts)


@pytest.mark.parametrize(("language", "page"), CASES)
def test_a_language_in_an_old_encoding_is_read_right_or_refused(tmp_path, language, page):
    own, *sentences = SENTENCES[language]
    if page != own:  # without signs that the encoding lacks
        sentences = [re.sub("[€„“’ª]", "", each) for each in sentences]
    texts = [f"{sentences[n % len(sentences)]} {n}" for n in range(40)]
    found = texts_of(tmp_path, texts, page)
    assert found == texts if page == own else found in (texts, None)
    for sentence in sentences:  # alone in a table of ASCII
        few = [f"{text} {sentence}" if n == 7 else text for n, text in enumerate(TEXTS)]
        assert texts_of(tmp_path, few, page) in (few, None)


@pytest.mark.parametrize("language", INFLECTED)
def test_words_with_mostly_western_letters_are_read_right(tmp_path, language):
    page, parts = INFLECTED[language]
    words = [a + b for stems, ends in parts.items() for a in stems.split() for b in ends.split(" ")]
    texts = [f"{one} {' '.join(words[n::40])}" for n, one in enumerate(TEXTS)]
    assert texts_of(tmp_path, texts, page) == texts
    for step in (3, 10, 30):  # fewer, in a table of English. Some are words of Portuguese, too
        some = words[::step]
        few = [f"{one} {' '.join(some[n::40])}".strip() for n, one in enumerate(TEXTS)]
        assert texts_of(tmp_path, few, page) in (few, None)


@pytest.mark.parametrize("words", WESTERN)
def test_symbols_digits_and_equal_texts_are_no_reason_to_refuse(tmp_path, words):
    several = words.split("|")
    few = [f"{one} {several[n % len(several)]}" for n, one in enumerate(TEXTS)]
    assert texts_of(tmp_path, few, "cp1252") == few


NAMES = "Szabó László Kovács Tóth Fűszer Erdős Győr Molnár Köln Zürich Günter"
POLISH = " ".join(SENTENCES["Polish"][1:])  # much of it looks Italian in this page


@pytest.mark.parametrize(("words", "page"), [(NAMES, "cp1250"), (POLISH, "cp1257")])
def test_letters_of_one_page_in_words_of_two_languages_are_refused_by_name(tmp_path, words, page):
    (tmp_path / "t.csv").write_bytes(cells([f"{words} {n}" for n in range(40)]).encode(page))
    with pytest.raises(InputError, match=r"unclear \(it may be cp12.* or cp12"):
        read_frame(tmp_path / "t.csv")


@pytest.mark.parametrize(("word", "page"), [("Kč", "cp1250"), ("Viesnīca bija ļoti", "cp1257")])
def test_a_few_letters_that_are_western_too_are_read_as_western(tmp_path, word, page):
    few = [f"{text} {word}" if n == 7 else text for n, text in enumerate(TEXTS)]
    assert texts_of(tmp_path, few, page) == [text.encode(page).decode("cp1252") for text in few]


@pytest.mark.parametrize(("page", "text"), OF_UNIX)
def test_an_encoding_of_unix_is_told_from_windows(tmp_path, page, text):
    for many in (40, 8):  # rows that tell, and one that tells the opposite
        texts = [f"{text if n < many else 'no more than a plain text'} {n}" for n in range(40)]
        assert texts_of(tmp_path, texts, page) == texts
        told = cells([*texts, "last"], [*LABELS, "bad"]).encode(page).replace(b"last", b"5 \x80")
        (tmp_path / "t.csv").write_bytes(told)
        assert read_frame(tmp_path / "t.csv")["review"][:40].tolist() == texts


@pytest.mark.parametrize(
    "text",
    [
        "½l of wine, müller",
        "it´s 5½, müller",
        "“so”",
        "Größe Länge übertrieben für schön müde grün böse Käse Tür fÃ¤r",
    ],
)
def test_one_record_makes_no_other_one_of_unix(tmp_path, text):
    texts = [f"{text} {n}" for n in range(39)]
    table = cells([*texts, "last"]).encode("cp1252").replace(b"last", b"5 \xa4 and 6 \xa4")
    (tmp_path / "t.csv").write_bytes(table)
    assert read_frame(tmp_path / "t.csv")["review"][:39].tolist() == texts


def test_damage_stays_with_its_record(tmp_path):
    table = cells(["a café", "a street", *TEXTS[2:]]).encode().replace(b"street", b"Stra\xdfe")
    (tmp_path / "t.csv").write_bytes(table)
    assert read_frame(tmp_path / "t.csv")["review"][:2].tolist() == ["a café", "a Stra\ufffde"]


def test_one_record_of_another_language_changes_no_other(tmp_path):
    for language, other in (("Polish", "źle Gdansk à la française où"), ("German", "niño £5")):
        page, *sentences = SENTENCES[language]
        texts = [f"{sentences[n % len(sentences)]} {n}" for n in range(40)]
        raw = cells([*texts, "last"], [*LABELS, "bad"]).encode(page)
        (tmp_path / "t.csv").write_bytes(raw.replace(b"last", other.encode(page, "ignore")))
        assert read_frame(tmp_path / "t.csv")["review"][:40].tolist() == texts


@pytest.mark.parametrize("page", OF_ASIA)
def test_an_encoding_that_is_not_known_is_refused(tmp_path, page):
    assert texts_of(tmp_path, [f"{OF_ASIA[page]} {n}" for n in range(40)], page) is None


@pytest.mark.parametrize("word", FEW)
def test_a_few_western_letters_are_read_right(tmp_path, word):
    few = [f"{text} {word}" if n == 7 else text for n, text in enumerate(TEXTS)]
    assert texts_of(tmp_path, few, "cp1252") == few
    labels = [word, "Rio"] * 20
    path = tmp_path / "l.csv"
    path.write_bytes(cells(TEXTS, labels, sep=";").encode("cp1252"))
    assert sorted(read_frame(path)["label"].unique()) == sorted({word, "Rio"})
