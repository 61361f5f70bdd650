package profimport

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// Server requests the series of jobs from a Prometheus server, or a compatible one.
type Server struct {
	URL    *url.URL // e.g. http://prometheus:9090; a user and a password in it are sent
	Client *http.Client
	// Step is the shortest time between two samples, 15 s where it is 0. Long jobs get
	// a longer one, so that an answer has at most gpuprof.MaxPoints samples a series
	// (Prometheus itself refuses more than 11,000).
	Step time.Duration
	// Label names the job, hpc_job where it is "".
	Label string
}

// nodeName is what a node's name may be: nothing that means something in a query.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*$`)

// Job returns the series of a job's GPU: the series that name the job, otherwise its node's series
// that name no job.
func (s *Server) Job(ctx context.Context, j *Job) ([]Series, error) {
	label := s.Label
	if label == "" {
		label = "hpc_job"
	}
	names := strings.Join(slices.Sorted(maps.Keys(metrics)), "|")
	got, err := s.ask(ctx, j, fmt.Sprintf(`{__name__=~%q,%s=~%q}`, names, label, regexp.QuoteMeta(j.RawID)+"|"+regexp.QuoteMeta(j.ID)))
	if err != nil || len(got) > 0 || !nodeName.MatchString(j.Nodes) {
		return got, err
	}
	short, _, _ := strings.Cut(j.Nodes, ".")
	return s.ask(ctx, j, fmt.Sprintf(`{__name__=~%q,%s="",instance=~%q}`, names, label, short+`([.:].*)?`))
}

func (s *Server) ask(ctx context.Context, j *Job, query string) ([]Series, error) {
	step := s.Step
	if step <= 0 {
		step = 15 * time.Second
	}
	step = max(step, (j.End.Sub(j.Start)/gpuprof.MaxPoints + time.Second).Truncate(time.Second))
	u := s.URL.JoinPath("api", "v1", "query_range")
	u.RawQuery = url.Values{
		"query": {query},
		"start": {strconv.FormatInt(j.Start.Unix(), 10)},
		"end":   {strconv.FormatInt(j.End.Unix(), 10)},
		"step":  {strconv.FormatFloat(step.Seconds(), 'f', -1, 64)},
	}.Encode()
	where := s.URL.Redacted()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", where, err)
	}
	client := s.Client
	if client == nil {
		client = &http.Client{Timeout: 2 * time.Minute}
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask %s for job %s: %w", where, j.ID, unwrapURL(err))
	}
	defer resp.Body.Close()
	// An error's answer is JSON, too, unless it comes from what stands in between.
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK && !strings.HasPrefix(kind, "application/json") {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection is used again
		return nil, fmt.Errorf("ask %s for job %s: it answers %s", where, j.ID, resp.Status)
	}
	return ReadPrometheus(resp.Body, where)
}

// unwrapURL leaves the address out of an error: it may hold a password.
func unwrapURL(err error) error {
	if e, ok := err.(*url.Error); ok { //nolint:errorlint // Do returns it as it is
		return e.Err
	}
	return err
}
