package appid

import (
	"cmp"
	"math"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// meaning is what a number stands for, by the name of its option, variable or file.
type meaning int

const (
	size   meaning = iota // how much work there is: relatives differ in sizes
	masked                // not the work: the number doesn't count
	where                 // where processes meet: the whole value doesn't count
	output                // where results go: a place in a row doesn't count
	kept                  // the work, but not its amount: with another number it is another family
)

// rules say what a number means by the words of its name. The first rule that knows a word decides; a name without such
// a word is a size.
var rules = []struct {
	means meaning
	at    position
	words string
	why   string
}{
	{masked, atEnd, "seed rng random_state", "other random numbers are as much work"},
	{masked, atEnd, "port", "processes meet there"},
	{
		masked, atEnd, "job job_id jobid slurm run_id runid trial_id uid uuid pid block_id worker_id wandb_id rdzv_id",
		"it tells runs of one thing apart",
	},
	{
		masked, atEnd, "verbose verbosity loglevel log_level log_interval log_every log_freq log_steps logging_steps",
		"it changes what is printed",
	},
	{masked, atEnd, "date timestamp", "it says when, not what"},
	{masked, atEnd, "attempt retry", "it does one thing again"},
	{masked, inNames, "rep replica replicate fold", "it does one thing again"},
	{masked, inNames, "chunk shard part split piece", "parts of one thing are alike"},
	{
		kept, anywhere, "gpu gpus device devices cuda thread threads nthreads omp ntomp ntmpi precision bits fp16 bf16 " +
			"amp version level proc procs nproc np worker workers nworkers node nodes rank ranks cpu cpus mode",
		"it is another use of the device",
	},
	{
		kept, anywhere, "tol tolerance eps epsilon threshold accuracy resolution spacing dx dy dz dt timestep",
		"less of it is more work: as a size it would be taken for less",
	},
	{kept, atEnd, "run exp experiment case test trial task config conf", "a place in a row says nothing of what " +
		"stands there"},
	{where, atEnd, "addr address endpoint host hostname master ip scheduler_file", "processes meet there"},
	{output, anywhere, "o out output outdir outfile log logfile logdir save results tensorboard", "results go there"},
	{
		size, anywhere, "n size length steps epochs iterations batch samples layers lr rate decay momentum beta gamma " +
			"temperature",
		"it may be how much work there is",
	},
}

// position is where in a name a rule's words count: anywhere (num_gpus), at its end (random_seed; seed_length is a
// length), or there and only before a number within a name (fold_3; --fold=3 may be how many).
type position int

const (
	anywhere position = iota
	atEnd
	inNames
)

// shapes are what doesn't count wherever it stands, each with two that are alike. fresh: it is made for one job, and
// what lies there may be anything.
var shapes = []struct {
	is    *regexp.Regexp
	fresh bool
	alike [2]string
	why   string
}{
	{
		regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), true,
		[2]string{"7c9e6679-7425-40de-944b-e07fc1f90ae7", "0b1e7f3a-1f52-4f0a-9d3c-5a7b8c9d0e1f"},
		"a UUID tells runs of one thing apart",
	},
	{
		regexp.MustCompile(`\b[a-z]{2,8}://[^/\s,'"]+:\d+`), false,
		[2]string{"tcp://node7:8786", "tcp://node12:40111"},
		"processes meet there",
	},
	{
		regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b|\[(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}\]:\d+`), false,
		[2]string{"10.75.64.5:43267", "[fe80::1]:8786"},
		"processes meet there",
	},
	{
		regexp.MustCompile(`\bblock-\d+(\.\d{9,}(\.\d+)?)?|\bruninfo/\d{3}\b|\b[A-Z]\w*Cluster-\d+`), false,
		[2]string{"block-0.1700000000.123456", "SLURMCluster-11"},
		"it tells a pool's workers apart",
	},
	{
		regexp.MustCompile(`(?:\b|_)(19|20)\d\d[-_.]?(0[1-9]|1[0-2])[-_.]?(0[1-9]|[12]\d|3[01])` +
			`([-_T.: /]([01]\d|2[0-3])([-_.:h][0-5]\d([-_.:m][0-5]\d)?|[0-5]\d[0-5]\d))?(?:\b|_)`), false,
		[2]string{"20260131", "2025-12-01_13-05-59"},
		"it says when, not what",
	},
	{
		regexp.MustCompile(`\b1[5-9]\d{8}\.\d+\b`), false,
		[2]string{"1700000000.12", "1711111111.3"},
		"it says when, not what",
	},
	{
		regexp.MustCompile(`\b[0-9a-f]{2}/[0-9a-f]{6,}\b|(?:\b|_|\bjob)[0-9a-f]{8,}(?:\b|_)`), true,
		[2]string{"3f/9c1d0e5a7b8c", "a0/11d0e5a7b8ff"},
		"a hash tells runs of one thing apart",
	},
	{
		regexp.MustCompile(`\btmp\.?[A-Za-z0-9][A-Za-z0-9_]{7}([A-Za-z0-9_]{2})?\b`), true,
		[2]string{"tmp.a8Xq0fLm2Z", "tmpq8d2x_ab"},
		"it is a temporary folder",
	},
	{
		regexp.MustCompile(`(?:/tmp|/dev/shm)/([a-z]+[-_.])?\d{5,}`), true,
		[2]string{"/tmp/ann-104417", "/dev/shm/104418"},
		"it is a temporary folder",
	},
	{
		// Shorter numbers where the word before them, or its lack, says that the name is made for one run: model_64 isn't.
		regexp.MustCompile(`(?:/tmp|/dev/shm)/(?:slurm|job|jobid|user|uid|pid|tmp|temp|scratch|sess|session|cache|` +
			`dask|ray|spark|joblib|pymp|torch|torchelastic|wandb|ompi|nccl)[-_.]?\d+\b`), true,
		[2]string{"/tmp/dask-1234", "/dev/shm/slurm.88"},
		"it is a temporary folder",
	},
	{
		regexp.MustCompile(`(?:(?:^|\W)(?:/var)?/tmp|/dev/shm)/\d+(?:/|$)`), true,
		[2]string{"/tmp/1234", "/tmp/88"},
		"it is a temporary folder",
	},
}

// plainly are hashes and temporary names that are words or numbers after all: deadbeef, 12345678, 12345e10, tmp_models.
var plainly = regexp.MustCompile(`^[_/]?([a-z_/]+|[\d/]+(e\d+)?)_?$`)

const (
	sizeMark   = '\x01' // stands in a text for a size
	maskedMark = "\x02" // and for what doesn't count
)

// meaningOf says what a number means after a name, and why; in: the number stands within a name.
func meaningOf(name string, in bool) (meaning, string) {
	name = strings.ToLower(camel.ReplaceAllString(name, "${1}_$2"))
	parts := strings.FieldsFunc(name, func(r rune) bool { return strings.ContainsRune("-+_.= ", r) })
	if len(parts) == 0 {
		return size, ""
	}
	if stem := strings.TrimRight(parts[len(parts)-1], "0123456789"); len(stem) > 2 {
		parts[len(parts)-1] = stem // seed1
	}
	all := "_" + strings.Join(parts, "_") + "_"
	for _, r := range rules {
		for word := range strings.FieldsSeq(r.words) {
			found := strings.HasSuffix(all, "_"+word+"_")
			if r.at == anywhere {
				found = strings.Contains(all, "_"+word+"_")
			}
			if found && (in || r.at != inNames) {
				return r.means, r.why
			}
		}
	}
	return size, ""
}

var camel = regexp.MustCompile(`([a-z])([A-Z])`)

// quantity is a number with its unit, or a grid.
var quantity = regexp.MustCompile(`^([0-9]+(?:[xX][0-9]+)+|[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,2})?)` +
	`([kKmMgGtT]?)(i?[bB]|i)?$`)

// parseQuantity reads 4096, 1e6, 4k, 2GiB, 64x64x32. k is 1000, ki and GiB are powers of 1024; only ratios matter. It
// must be positive, and a day is none.
func parseQuantity(s string) (float64, bool) {
	m := quantity.FindStringSubmatch(s)
	if m == nil || len(s) > 32 || len(s) == 8 && (strings.HasPrefix(s, "19") || strings.HasPrefix(s, "20")) {
		return 0, false
	}
	v := 1.0
	for _, part := range strings.FieldsFunc(m[1], func(r rune) bool { return r == 'x' || r == 'X' }) {
		f, err := strconv.ParseFloat(part, 64)
		if err != nil {
			return 0, false
		}
		v *= f
	}
	unit := 1000.0
	if strings.HasPrefix(m[3], "i") {
		unit = 1024
	}
	v *= math.Pow(unit, float64(strings.Index("-kmgt", strings.ToLower(cmp.Or(m[2], "-")))))
	return v, v > 0 && !math.IsInf(v, 0)
}

// value returns what counts of an option's or a variable's value.
func (r *reader) value(name, value string, how naming) string {
	means, why := meaningOf(name, false)
	if m := dated.FindStringSubmatch(value); m != nil && means != masked {
		if t, err := time.Parse("20060102", m[1]+m[2]+m[3]); err == nil {
			r.dates = append(r.dates, t)
		}
	}
	value = r.shaped(value)
	v, isNumber := parseQuantity(value)
	switch {
	case value == "":
		return value
	case means == where && !isNumber, means == masked && (isNumber || strings.Trim(value, "0123456789.eE+-") == ""):
		return r.mask(name+" "+value, why)
	case means == kept:
		return r.named(value, naming{})
	case isNumber:
		return r.size(name, v)
	}
	how.row = how.row && means == output
	dir, stem, ending := cutPath(value)
	how.sizes = how.sizes && (dir != "" || ending != "") && !settings[strings.TrimPrefix(ending, ".")]
	how.ending = ending
	return r.named(dir, naming{}) + r.named(stem, how) + ending
}

// dated is a value that is a day, or a time on one.
var dated = regexp.MustCompile(`^(\d{4})[-_.]?(\d\d)[-_.]?(\d\d)(?:[-_T.: ]\d\d[-_.:hm\d]*)?$`)

// period is what counts of a script's dates, beyond that they stand there: of two or more, the days from the first to
// the last. A forecast of three days is another job than one of a year, and tomorrow's is as much work as today's.
func (r *reader) period() string {
	if len(r.dates) < 2 {
		return ""
	}
	slices.SortFunc(r.dates, time.Time.Compare)
	return "\ndays " + r.size("days", 1+r.dates[len(r.dates)-1].Sub(r.dates[0]).Hours()/24)
}

// naming says what becomes of the numbers in a name: sizes are found in it, its place in a row doesn't count (row), nor
// that in a long row of files (files). ending is the file's.
type naming struct {
	sizes, row, files bool
	ending            string
}

var digits = regexp.MustCompile(`[0-9]+(?:[xX][0-9]+)+|[0-9]+(?:\.[0-9]+)?`)

// before is the name that a number in a name belongs to: seed_1, fold=3.
var before = regexp.MustCompile(`[A-Za-z][A-Za-z_-]*[-_=]?$`)

// maxBefore bounds that name, which is looked for once a number: a word may have as many numbers as letters.
const maxBefore = 64

// shaped masks what doesn't count wherever it stands.
func (r *reader) shaped(s string) string {
	for _, shape := range shapes {
		s = shape.is.ReplaceAllStringFunc(s, func(found string) string {
			if shape.fresh && plainly.MatchString(found) {
				return found
			}
			r.fresh = r.fresh || shape.fresh
			return r.mask(found, shape.why)
		})
	}
	return s
}

// named returns what counts of a name. A number that a letter follows is a part of a word (h2o, 64molecules).
func (r *reader) named(s string, how naming) string {
	s = r.shaped(s)
	var out strings.Builder
	var sizes []float64
	at := 0
	for _, m := range digits.FindAllStringIndex(s, -1) {
		text, unit, rest := s[m[0]:m[1]], "", s[m[1]:]
		if rest != "" && strings.ContainsRune("kKmMgGtT", rune(rest[0])) {
			unit, rest = rest[:1], rest[1:]
		}
		if rest != "" && letter(rest[0]) {
			continue
		}
		of := before.FindString(s[max(0, m[0]-maxBefore):m[0]])
		means, why := meaningOf(of, true)
		apart := m[0] == 0 || !letter(s[m[0]-1]) || means == kept
		v, ok := parseQuantity(text + unit)
		counter := len(text) > 2 && text[0] == '0' && !strings.Contains(text, ".")
		row := how.row && unit == "" && apart && (!amount(text, v) || v >= 1e5)
		switch {
		case of != "" && (means == masked || means == where):
			out.WriteString(s[at:m[0]] + r.mask(of+text, why))
		case counter && how.files, row:
			out.WriteString(s[at:m[0]] + r.mask(text, "it is a place in a row"))
		case how.sizes && ok && means != kept && !counter && (unit != "" || amount(text, v)):
			out.WriteString(s[at:m[0]] + string(sizeMark))
			sizes = append(sizes, v)
			text += unit
		default:
			continue
		}
		at = m[0] + len(text)
	}
	pattern := out.String() + s[at:]
	for _, v := range sizes {
		r.size("file "+Legible(pattern)+how.ending, v)
	}
	return pattern
}

// amount reports whether a number in a name is rather how much than which one.
func amount(text string, v float64) bool {
	return v >= 100 && v < 1e7 || strings.ContainsAny(text, "xX") ||
		v >= 16 && v == math.Trunc(v) && bits.OnesCount64(uint64(v)) == 1
}

// folder returns what counts of a folder's name.
func (r *reader) folder(path string) string {
	parts := strings.Split(r.shaped(path), "/")
	for i, p := range parts {
		parts[i] = r.named(p, naming{sizes: true})
	}
	return strings.Join(parts, "/")
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// settings are endings of files with names that say what is done, not with how much.
var settings = set("yaml yml toml cfg conf ini json py sh lua jl R so sif exe bin")

// cutPath cuts a word into a folder with its slash, a name, and an ending of up to eight letters; the folder and the
// ending of what is no file's name are "".
func cutPath(w string) (dir, stem, ending string) {
	i := strings.LastIndexByte(strings.TrimRight(w, "/"), '/')
	dir, stem = w[:i+1], w[i+1:]
	if j := strings.LastIndexByte(stem, '.'); j > 0 && len(stem)-j > 1 && len(stem)-j <= 9 &&
		strings.Trim(stem[j:], ".0123456789eE") != "" {
		return dir, stem[:j], stem[j:]
	}
	return dir, stem, ""
}

// mask notes that something doesn't count, and returns what stands for it.
func (r *reader) mask(text, why string) string {
	if len(r.masked) < maxSizes && text != "" {
		r.masked = append(r.masked, Masked{shortName(text), why})
	}
	return maskedMark
}

// size notes a size, and returns what stands for it.
func (r *reader) size(name string, v float64) string {
	r.sizes = append(r.sizes, Size{Name: shortName(name), Value: v})
	return string(sizeMark)
}

// shortName makes of what a user wrote what can be shown and kept.
func shortName(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), 40)]
}
