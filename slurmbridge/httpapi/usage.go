package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
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

// report answers a query, if possible with a report up to a minute old; that no run matches is never an old answer.
// Several requests share the report: it must not be changed. It returns once the report is made, even if the request's
// reader has gone: the requests' turns bound how many are made at a time.
func (p *pages) report(ctx context.Context, q usage.Query) (*usage.Report, error) {
	key := fmt.Sprintf("%d %d %s %q %q", q.From.Unix()/60, q.To.Unix()/60, q.By, q.Users, q.Accounts)
	q.Limit = mostLines
	return p.reports.get(context.WithoutCancel(ctx), key, func(ctx context.Context) (*usage.Report, error) {
		return p.Usage(ctx, q)
	})
}

func (p *pages) query(v url.Values) (usage.Query, error) {
	now := p.Now()
	q := usage.Query{Period: history.Period{From: now.Add(-30 * 24 * time.Hour), To: now}, By: usage.User}
	if err := cmp.Or(readTime(v, "since", &q.From), readTime(v, "until", &q.To)); err != nil {
		return q, err
	}
	if span := q.To.Sub(q.From); span <= 0 || span > longestSpan {
		return q, badRequest("from since to until must be more than nothing, and %d days at most", longestSpan/(24*time.Hour))
	}
	if text := v.Get("by"); text != "" {
		var err error
		if q.By, err = usage.ParseBy(text); err != nil {
			return q, badRequest("by: %v", err)
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

// allUsage serves the report on all users. Where Slurm hides usage, only users with access to everything
// get it.
func (p *pages) allUsage(w http.ResponseWriter, req *http.Request) (any, error) {
	if !p.viewer(w, req, p.hidden()).all {
		return nil, fault{http.StatusUnauthorized, "Slurm hides other users' usage here (PrivateData), and so does the " +
			"bridge; slurmbridge usage --me shows yours"}
	}
	return p.answer(req, "")
}

// ownUsage serves users the report on themselves.
func (p *pages) ownUsage(w http.ResponseWriter, req *http.Request) (any, error) {
	user := p.Asker.viewer(w, req).user
	if user == "" {
		return nil, fault{http.StatusUnauthorized, "the request needs a credential: slurmbridge usage --me, called on a " +
			"machine of the cluster, has one"}
	}
	return p.answer(req, user)
}

func (p *pages) answer(req *http.Request, user string) (any, error) {
	q, err := p.query(req.URL.Query())
	if err != nil {
		return nil, err
	}
	if user != "" {
		q.Users = []string{user}
	}
	r, err := p.report(req.Context(), q)
	switch {
	case errors.Is(err, ErrNoUsage):
		return nil, fault{http.StatusNotFound, err.Error()}
	case err != nil:
		return nil, fault{http.StatusInternalServerError, "the database can't be read"}
	}
	return r, nil
}

func badRequest(format string, args ...any) error {
	return fault{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// IdleReport lists GPUs that are held idle.
type IdleReport struct {
	At      time.Time  `json:"at"`
	Standby string     `json:"standby,omitempty"` // the daemon that decides in place of this one
	Jobs    []job.Idle `json:"jobs"`
}

// idle serves the jobs that do nothing with their GPUs; where Slurm hides usage, only the user's
// own.
func (p *pages) idle(w http.ResponseWriter, req *http.Request) (any, error) {
	st := p.Status()
	if st == nil || st.Snap == nil {
		return nil, errNotPolled
	}
	r := IdleReport{At: st.At, Standby: st.Standby, Jobs: append([]job.Idle{}, st.Idle...)}
	who := p.viewer(w, req, p.hidden())
	if who.user == "" && !who.all {
		return nil, fault{http.StatusUnauthorized, hides + ": the request needs a credential"}
	}
	r.Jobs = slices.DeleteFunc(r.Jobs, func(j job.Idle) bool { return !who.all && j.User != who.user })
	return r, nil
}

// usageDays are the periods that the page offers.
var usageDays = []int{1, 7, 30, 90, 365}

type usageView struct {
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
	Idle     []job.Idle
	IdleGPUs float64
}

// With is the address of the page with another period or another way to sum up.
func (v *usageView) With(days int, by usage.By) string {
	return "usage?" + url.Values{"days": {strconv.Itoa(days)}, "by": {string(by)}}.Encode()
}

// mostUsageLines is how many lines the page has.
const mostUsageLines = 50

func (p *pages) showUsage(w http.ResponseWriter, req *http.Request) {
	v := usageView{Now: p.Now(), Days: 30, By: usage.Account, DaySet: usageDays, Private: p.hidden()}
	v.Ways = []usage.By{usage.Account, usage.User, usage.Partition, usage.Application, usage.Node}
	if v.Private {
		v.Ways, v.By = []usage.By{usage.Partition, usage.Node}, usage.Partition
	}
	q := req.URL.Query()
	v.By = cmp.Or(usage.By(q.Get("by")), v.By)
	err := readNumber(q, "days", &v.Days, 1, 400)
	if err == nil && !slices.Contains(v.Ways, v.By) {
		err = fmt.Errorf("by takes one of %v", v.Ways)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.fill(req.Context(), &v)
	p.write(w, "usage.html", &v)
}

func (p *pages) fill(ctx context.Context, v *usageView) {
	days := history.Period{From: v.Now.Add(-time.Duration(v.Days) * 24 * time.Hour), To: v.Now}
	r, err := p.report(ctx, usage.Query{Period: days, By: v.By})
	switch {
	case errors.Is(err, ErrNoUsage):
		v.None = true
	case err != nil:
		v.Trouble = "the database can't be read"
	default:
		v.Report = r
		v.Lines = r.Lines[:min(len(r.Lines), mostUsageLines)]
		v.More = len(r.Lines) - len(v.Lines) + r.More
	}
	if st := p.Status(); st != nil {
		for _, j := range st.Idle {
			v.IdleGPUs += j.GPUs
		}
		if !v.Private {
			v.Idle = st.Idle[:min(len(st.Idle), mostUsageLines)]
		}
	}
}
