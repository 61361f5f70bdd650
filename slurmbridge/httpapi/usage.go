package httpapi

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/chart"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// Paths of the usage reports. UsagePath takes ?since= and ?until= (RFC 3339), ?by=, ?user= and
// ?account=; OwnUsagePath returns the same for the credential's user.
const (
	UsagePath    = "/v1/usage"
	OwnUsagePath = "/v1/usage/me"
	IdlePath     = "/v1/idle"
)

// ErrNoUsage says that no run matches the query.
var ErrNoUsage = errors.New("nothing is known")

// Bounds of what one question costs, and of what is answered.
const (
	mostLines   = 1000
	mostNames   = 100 // users, and accounts, that a question may be about
	longestSpan = 400 * 24 * time.Hour
	answerFor   = time.Minute // how old an answer may be
	mostAnswers = 32          // that are kept
)

// usages answers what GPUs were used for.
type usages struct {
	*sheet
	server *Server
	kept   memo[string, answered]
}

// answered is a report, or that no run matches.
type answered struct {
	report *usage.Report
	none   error
}

func newUsages(s *Server) *usages {
	return &usages{
		sheet: newSheet(usageSource), server: s,
		kept: memo[string, answered]{now: s.Now, fresh: answerFor, within: readWithin, most: mostAnswers},
	}
}

// report answers a query, if possible with a report up to a minute old. Several requests share the
// report: it must not be changed. It returns once the report is made, even if the request's reader has gone: the
// requests' turns bound how many are made at a time.
func (u *usages) report(ctx context.Context, q usage.Query) (*usage.Report, error) {
	key := fmt.Sprintf("%d %d %s %q %q", q.From.Unix()/60, q.To.Unix()/60, q.By, q.Users, q.Accounts)
	a, err := u.kept.get(context.WithoutCancel(ctx), key, func(ctx context.Context) (answered, error) { return u.make(ctx, q) })
	if err != nil {
		return nil, err
	}
	return a.report, a.none
}

func (u *usages) make(ctx context.Context, q usage.Query) (answered, error) {
	r, err := u.server.Usage(ctx, q)
	if errors.Is(err, ErrNoUsage) {
		return answered{none: err}, nil
	}
	if r != nil && len(r.Lines) > mostLines {
		r.More += len(r.Lines) - mostLines
		r.Lines = r.Lines[:mostLines]
		for name := range r.Owners {
			if !slices.ContainsFunc(r.Lines, func(l usage.Line) bool { return l.Name == name }) {
				delete(r.Owners, name)
			}
		}
	}
	return answered{report: r}, err
}

func (u *usages) query(v url.Values) (usage.Query, error) {
	now := u.server.Now()
	q := usage.Query{From: now.Add(-30 * 24 * time.Hour), To: now, By: usage.User}
	for _, x := range []struct {
		name string
		into *time.Time
	}{{"since", &q.From}, {"until", &q.To}} {
		if text := v.Get(x.name); text != "" {
			t, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return q, fmt.Errorf("%s takes a time like 2006-01-02T15:04:05Z", x.name)
			}
			*x.into = t
		}
	}
	if span := q.To.Sub(q.From); span <= 0 || span > longestSpan {
		return q, fmt.Errorf("from since to until must be more than nothing, and %d days at most", longestSpan/(24*time.Hour))
	}
	if text := v.Get("by"); text != "" {
		var err error
		if q.By, err = usage.ParseBy(text); err != nil {
			return q, fmt.Errorf("by: %w", err)
		}
	}
	for name, into := range map[string]*[]string{"user": &q.Users, "account": &q.Accounts} {
		if list := v[name]; len(list) > 0 {
			*into = slices.Sorted(slices.Values(list))
		}
	}
	return q, nil
}

// hidden reports whether users see no usage but their own.
func (s *Server) hidden() bool {
	st := s.Status()
	return s.private(st) || st != nil && st.Snap != nil && st.Snap.PrivateUsage
}

// asks returns the request's user, "" = not identified, and whether the user may see everything.
func (s *Server) asks(req *http.Request) (user string, all bool) {
	c, err := s.Asker.who(req)
	if err != nil {
		return "", false
	}
	return s.Asker.user(c), s.Asker.Trusted(c.UID)
}

func (s *Server) wantsCredential(w http.ResponseWriter, why string) {
	if s.Asker != nil {
		w.Header().Set("WWW-Authenticate", s.Asker.Header)
	}
	http.Error(w, why, http.StatusUnauthorized)
}

// all serves the report on all users. Where Slurm hides usage, only users with access to everything
// get it.
func (u *usages) all(w http.ResponseWriter, req *http.Request) {
	if u.server.hidden() {
		if _, all := u.server.asks(req); !all {
			u.server.wantsCredential(w, "Slurm hides other users' usage here (PrivateData), and so does the bridge; slurmbridge usage --me shows yours")
			return
		}
	}
	u.answer(w, req, "")
}

// own serves users the report on themselves.
func (u *usages) own(w http.ResponseWriter, req *http.Request) {
	user, _ := u.server.asks(req)
	if user == "" {
		u.server.wantsCredential(w, "the request needs a credential: slurmbridge usage --me, called on a machine of the cluster, has one")
		return
	}
	u.answer(w, req, user)
}

func (u *usages) answer(w http.ResponseWriter, req *http.Request, user string) {
	q, err := u.query(req.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if user != "" {
		q.Users = []string{user}
	}
	r, err := u.report(req.Context(), q)
	switch {
	case errors.Is(err, ErrNoUsage):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, "the database can't be read", http.StatusInternalServerError)
	default:
		reply(w, r)
	}
}

// IdleReport lists GPUs that are held idle.
type IdleReport struct {
	At   time.Time  `json:"at"`
	Jobs []job.Idle `json:"jobs"`
}

// idle serves the jobs that do nothing with their GPUs; where Slurm hides usage, only the user's
// own.
func (u *usages) idle(w http.ResponseWriter, req *http.Request) {
	st := u.server.Status()
	if st == nil || st.Snap == nil {
		http.Error(w, "Slurm has not been polled yet", http.StatusServiceUnavailable)
		return
	}
	r := IdleReport{At: st.At, Jobs: slices.Clone(st.Idle)}
	if u.server.hidden() {
		user, all := u.server.asks(req)
		if user == "" && !all {
			u.server.wantsCredential(w, "Slurm hides other users' jobs here (PrivateData), and so does the bridge: the request needs a credential")
			return
		}
		r.Jobs = slices.DeleteFunc(r.Jobs, func(j job.Idle) bool { return !all && j.User != user })
	}
	if r.Jobs == nil {
		r.Jobs = []job.Idle{}
	}
	reply(w, r)
}

//go:embed usage.html
var usageSource string

// usageDays are the periods that the page offers.
var usageDays = []int{1, 7, 30, 90, 365}

type usageView struct {
	CSS      template.CSS
	Now      time.Time
	Days     int
	By       usage.By
	DaySet   []int
	Ways     []usage.By
	Private  bool
	Trouble  string
	None     bool // no GPU job has run in the period
	Report   *usage.Report
	Lines    []usage.Line
	More     int
	Picture  template.HTML
	Idle     []job.Idle
	IdleGPUs float64
}

// With is the address of the page with another period or another way to sum up.
func (v *usageView) With(days int, by usage.By) string {
	return "usage?" + url.Values{"days": {strconv.Itoa(days)}, "by": {string(by)}}.Encode()
}

// mostUsageLines is how many lines the page has.
const mostUsageLines = 50

func (u *usages) show(w http.ResponseWriter, req *http.Request) {
	v := usageView{CSS: u.css, Now: u.server.Now(), Days: 30, By: usage.Account, DaySet: usageDays, Private: u.server.hidden()}
	v.Ways = []usage.By{usage.Account, usage.User, usage.Partition, usage.Application, usage.Node}
	if v.Private {
		v.Ways, v.By = []usage.By{usage.Partition, usage.Node}, usage.Partition
	}
	if text := req.URL.Query().Get("days"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 400 {
			http.Error(w, "days takes a number from 1 to 400", http.StatusBadRequest)
			return
		}
		v.Days = n
	}
	if text := req.URL.Query().Get("by"); text != "" {
		if v.By = usage.By(text); !slices.Contains(v.Ways, v.By) {
			words := make([]string, len(v.Ways))
			for i := range words {
				words[i] = string(v.Ways[i])
			}
			http.Error(w, "by takes "+strings.Join(words, ", "), http.StatusBadRequest)
			return
		}
	}
	u.fill(req.Context(), &v)
	u.write(w, &v)
}

func (u *usages) fill(ctx context.Context, v *usageView) {
	r, err := u.report(ctx, usage.Query{From: v.Now.Add(-time.Duration(v.Days) * 24 * time.Hour), To: v.Now, By: v.By})
	switch {
	case errors.Is(err, ErrNoUsage):
		v.None = true
	case err != nil:
		v.Trouble = "the database can't be read"
	default:
		v.Report = r
		v.Lines = r.Lines[:min(len(r.Lines), mostUsageLines)]
		v.More = len(r.Lines) - len(v.Lines) + r.More
		v.Picture = usagePicture(v.Lines, r.Hours())
	}
	if st := u.server.Status(); st != nil {
		for _, j := range st.Idle {
			v.IdleGPUs += j.GPUs
		}
		if !v.Private {
			v.Idle = st.Idle[:min(len(st.Idle), mostUsageLines)]
		}
	}
}

// usagePicture shows held against computed.
func usagePicture(lines []usage.Line, u usage.Unit) template.HTML {
	const most = 8
	b := chart.Bars{Title: u.Noun + " held and computed", Desc: "of those that held most"}
	for i := range lines[:min(len(lines), most)] {
		l := &lines[i]
		b.Bars = append(b.Bars, chart.Bar{Label: l.Label() + ", held", Value: l.Held, Text: u.Of(&l.Held)})
		if l.Computed != nil {
			b.Bars = append(b.Bars, chart.Bar{Label: "computed", Value: *l.Computed, Text: u.Of(l.Computed), Class: "good"})
		}
	}
	if len(b.Bars) == 0 {
		return ""
	}
	return b.HTML()
}
