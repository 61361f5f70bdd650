package job

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Terms is what a job's owner says about sharing in --comment.
type Terms struct {
	App         string  `json:"app,omitempty"`          // app=NAME
	NoShare     bool    `json:"no_share,omitempty"`     // share:no
	MaxSlowdown float64 `json:"max_slowdown,omitempty"` // share:max-slowdown=1.15; 0 = the site's default
	// ArrayOnly: share only with tasks of the same array (share:with=array).
	ArrayOnly bool `json:"array_only,omitempty"`
	Retry     bool `json:"retry,omitempty"` // share:retry: after any failure while sharing it may run once more, alone
	// Session: the job is an interactive session (share:interactive), held to SessionMiB of device memory
	// (share:interactive=8G), 0 = the site's default.
	Session    bool    `json:"session,omitempty"`
	SessionMiB float64 `json:"session_mib,omitempty"`
	// TryMiB limits the device memory of one run, alone, of a preallocating application, to show how much it needs
	// (share:try-memory=8G); 0 = the site's default.
	TryMiB float64 `json:"try_mib,omitempty"`
	// MemoryMiB is the device memory that the job needs according to its owner (share:memory=8G); 0 = not said. A job of
	// an application without a profile shares where MPS can hold it to that.
	MemoryMiB float64 `json:"memory_mib,omitempty"`
	Report    bool    `json:"report,omitempty"`  // share:report: mail its owner what the job used, once it has ended
	NoMail    bool    `json:"no_mail,omitempty"` // share:no-mail: don't mail its owner while its GPUs are idle
	// Model is the type of GPU, as gres.conf names it, that the job is to share (share:model=2g.20gb); "" = any.
	Model string `json:"model,omitempty"`
	// Ignored holds a sentence per invalid term. NoShare is set then, since the owner may have meant to forbid sharing.
	Ignored []string `json:"ignored,omitempty"`
}

// wishShape is a word that says something about sharing. The first group is share: as the pages have it; otherwise the
// word is one that is easily mistyped (share=no, shared:no), which counts where it makes sense and may belong to
// another tool where it doesn't. contrib/job_submit.lua reads the same words.
var wishShape = regexp.MustCompile(`^(?i:(share:)|share=|shared[:=])(.*)$`)

// neverWords keep a job from sharing at all.
var neverWords = []string{"no", "off", "never", "none", "false"}

// ParseTerms reads terms out of a comment. Terms are separated by blanks, commas or semicolons; other words belong to
// other tools and are passed over.
func ParseTerms(comment string) Terms {
	var t Terms
	separates := func(r rune) bool { return strings.ContainsRune(" \t\n,;", r) }
	for word := range strings.FieldsFuncSeq(comment, separates) {
		if name, ok := strings.CutPrefix(word, "app="); ok {
			if appShape.MatchString(name) {
				t.App = name
			} else {
				t.Ignored = append(t.Ignored, fmt.Sprintf("app=%.64q: a name has 1 to 64 letters, digits, '.', '_' or '-'", name))
			}
			continue
		}
		wish := wishShape.FindStringSubmatch(word)
		if wish == nil {
			continue
		}
		if wrong := t.wish(wish[2]); wrong != "" && wish[1] != "" {
			t.NoShare = true
			t.Ignored = append(t.Ignored, wrong+"; the job has a GPU of its own")
		}
	}
	return t
}

// wish sets one term, given without its "share:", and returns what is wrong with it, "" = nothing.
func (t *Terms) wish(text string) (wrong string) {
	flags := map[string]*bool{
		"with=array": &t.ArrayOnly, "retry": &t.Retry, "report": &t.Report, "no-mail": &t.NoMail, "interactive": &t.Session,
	}
	amounts := map[string]*float64{"interactive": &t.SessionMiB, "try-memory": &t.TryMiB, "memory": &t.MemoryMiB}
	lower := strings.ToLower(text)
	key, _, _ := strings.Cut(lower, "=")
	_, value, _ := strings.Cut(text, "=")
	switch {
	case slices.Contains(neverWords, lower):
		t.NoShare = true
	case flags[lower] != nil:
		*flags[lower] = true
	case amounts[key] != nil:
		mib, ok := parseMiB(value)
		if !ok {
			return fmt.Sprintf("share:%s=%.32q: it takes GPU memory, for example 8G or 512M", key, value)
		}
		*amounts[key] = mib
		t.Session = t.Session || key == "interactive"
	case key == "model":
		if t.Model = ""; !typeShape.MatchString(value) {
			return fmt.Sprintf("share:model=%.64q: it takes a type of GPU, for example 2g.20gb", value)
		}
		t.Model = value
	case key == "max-slowdown":
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !factorShape.MatchString(value) || v < 1 || v > 100 {
			return fmt.Sprintf("share:max-slowdown=%.32q: it takes a number from 1 to 100, for example 1.15", value)
		}
		t.MaxSlowdown = v
	default:
		return fmt.Sprintf("share:%.64q: known are share:no, share:with=array, share:retry, share:interactive, "+
			"share:report, share:no-mail, share:memory=MEMORY, share:try-memory=MEMORY, share:model=TYPE and "+
			"share:max-slowdown=NUMBER", text)
	}
	return ""
}

// parseMiB reads an amount of memory in M (MiB) or G (GiB).
func parseMiB(s string) (float64, bool) {
	unit := 1.0
	number, giga := strings.CutSuffix(s, "G")
	if giga {
		unit = 1024
	} else if number, giga = strings.CutSuffix(s, "M"); !giga {
		return 0, false
	}
	n, err := strconv.ParseUint(number, 10, 32)
	return float64(n) * unit, err == nil && n > 0
}

// appShape is an application's name as users may give it, typeShape a type of GPU, factorShape a slowdown.
var (
	factorShape = regexp.MustCompile(`^[0-9]+(\.[0-9]*)?$`)
	appShape    = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	typeShape   = regexp.MustCompile(`^[A-Za-z0-9._+-]{1,64}$`)
)

// MatchName reports whether a job's name matches a pattern of path.Match's, whose "*" and "?" here match slashes, too:
// Open OnDemand calls its sessions sys/dashboard/sys/jupyter. The error is path.ErrBadPattern.
func MatchName(pattern, name string) (bool, error) {
	plain := strings.NewReplacer("/", "\x00") // no name has this letter
	return path.Match(plain.Replace(pattern), plain.Replace(name))
}

// AppName is the site's name for the application of jobs whose names match a pattern.
type AppName struct {
	Pattern string // of jobs' names; see MatchName
	App     string
}

// ParseAppName reads PATTERN=NAME.
func ParseAppName(s string) (AppName, error) {
	i := strings.LastIndexByte(s, '=')
	if i < 1 {
		return AppName{}, errors.New("it has no =")
	}
	n := AppName{Pattern: s[:i], App: s[i+1:]}
	if !appShape.MatchString(n.App) {
		return n, errors.New("a name has 1 to 64 letters, digits, '.', '_' or '-'")
	}
	_, err := MatchName(n.Pattern, "")
	return n, err
}

// AppNamed returns the application's name from the job's owner, else from the first of the site's patterns that
// matches; "" = neither names it.
func AppNamed(j *Job, t *Terms, names []AppName) string {
	if app := cmp.Or(t.App, j.Note.App); app != "" {
		return app
	}
	for _, n := range names {
		if ok, _ := MatchName(n.Pattern, j.Name); ok {
			return n.App
		}
	}
	return ""
}

// Sessions selects the interactive sessions (notebooks, shells) in addition to jobs with share:interactive, and holds
// the defaults of their terms.
type Sessions struct {
	Names      []string // patterns of job names; see MatchName
	Partitions []string
	MemMiB     float64 // of device memory that MPS holds a session to, where its owner doesn't name it
	// MaxSlowdown is how much slower a session may compute, where its owner doesn't say.
	MaxSlowdown float64
}

// A session's mean use of its GPU, and the length of one without a time limit, s. Both are assumptions: notebooks hold
// their GPU for hours and compute for minutes.
const (
	sessionUse       = 0.1
	sessionDurationS = 8 * 3600
)

// Terms returns a job's terms, completed where it is a session.
func (s *Sessions) Terms(j *Job) Terms {
	t := ParseTerms(j.Comment)
	named := func(pattern string) bool { ok, _ := MatchName(pattern, j.Name); return ok }
	listed := func(p string) bool { return slices.Contains(s.Partitions, p) }
	t.Session = t.Session || slices.ContainsFunc(s.Names, named) || slices.ContainsFunc(j.Partitions(), listed)
	if t.Session {
		t.SessionMiB = cmp.Or(t.SessionMiB, t.MemoryMiB, s.MemMiB)
		t.MaxSlowdown = cmp.Or(t.MaxSlowdown, s.MaxSlowdown)
	}
	return t
}

// Assumptions about a job whose owner says only how much memory it needs. Training jobs use half a GPU on average
// where that was published (Jeon et al., USENIX ATC 2019), other jobs less. Owners ask for more time than jobs take
// (Mu'alem and Feitelson, IEEE TPDS 12, 2001): here the median run takes a quarter of its limit, and mean and standard
// deviation make the limit, so that it counts as one that may be reached.
const (
	AssumedUse    = 0.4  // of the GPU
	askedMean     = 0.43 // of its limit
	askedSD       = 1 - askedMean
	askedLimitedS = sessionDurationS // of a job without a limit
)

// AskedProfile is the assumed profile of a job whose application has none, from the memory that its owner says it
// needs.
func AskedProfile(user, app string, limitS, memMiB float64) *rlcore.Profile {
	s := cmp.Or(limitS, askedLimitedS)
	return &rlcore.Profile{
		App: cmp.Or(app, "(not known)"), Owner: user, DurationS: askedMean * s, DurationSD: askedSD * s,
		PeriodS: askedMean * s,
		Series:  []rlcore.Use{{GPU: AssumedUse, Core: AssumedUse, MemMiB: memMiB}}, HeldMiB: memMiB, Asked: true,
		Source: "its owner says how much memory it needs",
	}
}

// SessionApp is the application of a session with completed terms. It has no key: a session's run teaches nothing about
// another.
func SessionApp(j *Job, t *Terms) App {
	of := func(use float64) *rlcore.Profile {
		p := &rlcore.Profile{
			App: "(interactive)", Owner: j.User, DurationS: sessionDurationS,
			Source: "an interactive session",
		}
		if j.TimeLimit > 0 {
			p.DurationS = j.TimeLimit.Seconds()
		}
		p.PeriodS, p.Series = p.DurationS, []rlcore.Use{{GPU: use, Core: use, MemMiB: t.SessionMiB}}
		return p
	}
	p := of(sessionUse)
	p.Busy = of(1)
	return App{Profile: p}
}
