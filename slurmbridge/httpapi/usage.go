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

// ErrNoUsage means that no run matches the query.
var ErrNoUsage = errors.New("nothing is known")

// Bounds of a query and its answer.
const (
	mostLines   = 1000
	mostNames   = 100 // of users, and of accounts, in a query
	longestSpan = 400 * 24 * time.Hour
	answerFor   = time.Minute // the maximum age of a cached answer
	mostAnswers = 32          // in the cache
)

// report answers a query, perhaps from the cache; ErrNoUsage isn't cached. Requests share the report, so it must not be
// changed. report waits for it even if the client has gone, since the requests' turns bound the work at a time.
func (a *api) report(ctx context.Context, q usage.Query) (*usage.Report, error) {
	key := fmt.Sprintf("%d %d %s %q %q", q.From.Unix()/60, q.To.Unix()/60, q.By, q.Users, q.Accounts)
	q.Limit = mostLines
	r, err := a.reports.get(context.WithoutCancel(ctx), key, func(ctx context.Context) (*usage.Report, error) {
		return a.Usage(ctx, q)
	})
	if err != nil && !errors.Is(err, ErrNoUsage) {
		err = errDatabase
	}
	return r, err
}

// hidden reports whether users see only their own usage.
func (s *Server) hidden() bool {
	st := s.Status()
	return s.private(st) || st != nil && st.Snap != nil && st.Snap.PrivateUsage
}

// allUsage serves the report on all users. Where Slurm hides usage, only trusted users get it.
func (a *api) allUsage(w http.ResponseWriter, req *http.Request) (any, error) {
	if !a.viewer(w, req, a.hidden()).all {
		return nil, fault{http.StatusUnauthorized, "Slurm hides other users' usage here (PrivateData), and so does the " +
			"bridge; slurmbridge usage --me shows yours"}
	}
	return a.usageOf(req, req.URL.Query()["user"])
}

// ownUsage serves the report on the requesting user.
func (a *api) ownUsage(w http.ResponseWriter, req *http.Request) (any, error) {
	user := a.Asker.viewer(w, req).user
	if user == "" {
		return nil, fault{http.StatusUnauthorized, "the request needs a credential: slurmbridge usage --me, called on a " +
			"machine of the cluster, has one"}
	}
	return a.usageOf(req, []string{user})
}

// usageOf serves the report on users, nil = all.
func (a *api) usageOf(req *http.Request, users []string) (any, error) {
	v := req.URL.Query()
	now := a.Now()
	q := usage.Query{By: usage.User, Period: history.Period{
		From: now.Add(-30 * 24 * time.Hour), To: now, Users: slices.Sorted(slices.Values(users)),
		Accounts: slices.Sorted(slices.Values(v["account"])),
	}}
	if err := cmp.Or(readTime(v, "since", &q.From), readTime(v, "until", &q.To)); err != nil {
		return nil, err
	}
	if span := q.To.Sub(q.From); span <= 0 || span > longestSpan {
		return nil, badRequest("until must be later than since, by at most %d days", longestSpan/(24*time.Hour))
	}
	var err error
	if q.By, err = usage.ParseBy(cmp.Or(v.Get("by"), string(q.By))); err != nil {
		return nil, badRequest("by: %v", err)
	}
	r, err := a.report(req.Context(), q)
	if errors.Is(err, ErrNoUsage) {
		err = fault{http.StatusNotFound, err.Error()}
	}
	return r, err
}

// IdleReport lists the jobs that hold GPUs idle.
type IdleReport struct {
	At      time.Time  `json:"at"`
	Standby string     `json:"standby,omitempty"` // the other daemon, which decides
	Jobs    []job.Idle `json:"jobs"`
}

// idle serves the jobs that hold GPUs idle; where Slurm hides usage, only the user's own.
func (a *api) idle(w http.ResponseWriter, req *http.Request) (any, error) {
	st := a.Status()
	if st == nil || st.Snap == nil {
		return nil, errNotPolled
	}
	m := newMask(a.viewer(w, req, a.hidden()), nil)
	if m.user == "" && !m.all {
		return nil, fault{http.StatusUnauthorized, hides + ": the request needs a credential"}
	}
	r := IdleReport{At: st.At, Standby: st.Standby, Jobs: append([]job.Idle{}, st.Idle...)}
	r.Jobs = slices.DeleteFunc(r.Jobs, func(j job.Idle) bool { return !m.owns(j.User) })
	return r, nil
}

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

// With returns the address of the page with these options.
func (v *usageView) With(days int, by usage.By) string {
	return "usage?" + url.Values{"days": {strconv.Itoa(days)}, "by": {string(by)}}.Encode()
}

const mostUsageLines = 50

func (a *api) usagePage(_ http.ResponseWriter, req *http.Request) (any, error) {
	v := &usageView{Now: a.Now(), Days: 30, By: usage.Account, DaySet: usageDays, Private: a.hidden()}
	v.Ways = []usage.By{usage.Account, usage.User, usage.Partition, usage.Application, usage.Node}
	if v.Private {
		v.Ways, v.By = []usage.By{usage.Partition, usage.Node}, usage.Partition
	}
	query := req.URL.Query()
	v.By = cmp.Or(usage.By(query.Get("by")), v.By)
	if err := readNumber(query, "days", &v.Days, 1, 400); err != nil {
		return nil, err
	}
	if !slices.Contains(v.Ways, v.By) {
		return nil, badRequest("by takes one of %v", v.Ways)
	}
	days := history.Period{From: v.Now.Add(-time.Duration(v.Days) * 24 * time.Hour), To: v.Now}
	r, err := a.report(req.Context(), usage.Query{Period: days, By: v.By})
	switch {
	case errors.Is(err, ErrNoUsage):
		v.None = true
	case err != nil:
		v.Trouble = err.Error()
	default:
		v.Report = r
		v.Lines = r.Lines[:min(len(r.Lines), mostUsageLines)]
		v.More = len(r.Lines) - len(v.Lines) + r.More
	}
	if st := a.Status(); st != nil {
		for _, j := range st.Idle {
			v.IdleGPUs += j.GPUs
		}
		if !v.Private {
			v.Idle = st.Idle[:min(len(st.Idle), mostUsageLines)]
		}
	}
	return page{"usage.html", v}, nil
}
