package profimport

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
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

	"github.com/prometheus/common/model"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// maxAnswer bounds an answer, bytes.
const maxAnswer = 512 << 20

// answer is what Prometheus' /api/v1/query_range returns.
type answer struct {
	Status    string `json:"status"`
	ErrorType string `json:"errorType"`
	Error     string `json:"error"`
	Data      *struct {
		ResultType string       `json:"resultType"`
		Result     model.Matrix `json:"result"`
	} `json:"data"`
}

// ReadPrometheus reads answers of Prometheus' /api/v1/query_range as JSON: one, or several one after the other. Samples
// that are no figure (NaN, DCGM's blanks) are kept. Errors are a *table.Error with the line, and as its column the byte
// of the line, where the answer begins or its JSON breaks.
func ReadPrometheus(r io.Reader, name string) (model.Matrix, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err == nil && len(data) > maxAnswer {
		err = errors.New("more than 512 MiB; ask for fewer jobs or a longer step")
	}
	if err != nil {
		return nil, &table.Error{File: name, Err: fmt.Errorf("read: %w", err)}
	}
	var all model.Matrix
	for dec, n := json.NewDecoder(bytes.NewReader(data)), 0; ; n++ {
		at := dec.InputOffset()
		var a answer
		err := dec.Decode(&a)
		switch {
		case errors.Is(err, io.EOF) && n > 0:
			return all, nil
		case errors.Is(err, io.EOF):
			return nil, &table.Error{File: name, Err: table.ErrEmpty}
		case err != nil:
			err = fmt.Errorf("it is no answer of /api/v1/query_range: %w", err)
		default:
			err = a.check()
		}
		if err != nil {
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				at = max(at, syntax.Offset)
			}
			before := data[:min(at, int64(len(data)))]
			line, column := 1+bytes.Count(before, []byte{'\n'}), len(before)-bytes.LastIndexByte(before, '\n')
			return nil, &table.Error{File: name, Line: line, Column: strconv.Itoa(column), Err: err}
		}
		all = append(all, a.Data.Result...)
	}
}

func (a *answer) check() error {
	switch {
	case a.Error != "" || a.Status == "error":
		return fmt.Errorf("the server answered %.40s: %.400s", a.ErrorType, a.Error)
	case a.Data == nil:
		return errors.New("it is no answer of /api/v1/query_range: there is no data in it")
	case a.Data.ResultType != "" && a.Data.ResultType != "matrix":
		return fmt.Errorf("resultType is %.20q, that of a range query is matrix", a.Data.ResultType)
	}
	for i, s := range a.Data.Result {
		if s == nil {
			return fmt.Errorf("series %d is null", i+1)
		}
		for k := 1; k < len(s.Values); k++ {
			if s.Values[k].Timestamp <= s.Values[k-1].Timestamp {
				return fmt.Errorf("series %d: value %d: its time is not after the one before", i+1, k+1)
			}
		}
	}
	return nil
}

// Server requests the series of jobs from a Prometheus server, or a compatible one.
type Server struct {
	URL *url.URL // e.g. http://prometheus:9090; a user and a password in it are sent
	// Step is the shortest time between two samples, 15 s where it is 0. Long jobs get
	// a longer one, so that an answer has at most gpuprof.MaxPoints samples a series
	// (Prometheus itself refuses more than 11,000).
	Step time.Duration
	// Label names the job, hpc_job where it is "".
	Label string
}

// jobLabel is dcgm-exporter's label for the job.
const jobLabel = "hpc_job"

// nodeName is what a node's name may be: nothing that means something in a query.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*$`)

// Job returns the series of a job's GPU: the series that name the job, otherwise its node's series
// that name no job.
func (s *Server) Job(ctx context.Context, j *Job) (model.Matrix, error) {
	label := cmp.Or(s.Label, jobLabel)
	names := strings.Join(slices.Sorted(maps.Keys(metrics)), "|")
	got, err := s.ask(ctx, j, fmt.Sprintf(`{__name__=~%q,%s=~%q}`, names, label, regexp.QuoteMeta(j.RawID)+"|"+regexp.QuoteMeta(j.ID)))
	if err != nil || len(got) > 0 || !nodeName.MatchString(j.Nodes) {
		return got, err
	}
	short, _, _ := strings.Cut(j.Nodes, ".")
	return s.ask(ctx, j, fmt.Sprintf(`{__name__=~%q,%s="",instance=~%q}`, names, label, short+`([.:].*)?`))
}

var client = &http.Client{Timeout: 2 * time.Minute}

func (s *Server) ask(ctx context.Context, j *Job, query string) (model.Matrix, error) {
	step := max(cmp.Or(s.Step, 15*time.Second), (j.End.Sub(j.Start)/gpuprof.MaxPoints + time.Second).Truncate(time.Second))
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
