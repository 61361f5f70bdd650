package recordhttp

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
)

// Metrics is what the controller shows of delivery, under the prefix slurmbridge_.
type Metrics struct {
	skew     prometheus.Histogram
	refusals *prometheus.CounterVec
}

// NewMetrics registers the controller's metrics of delivery with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	auto := promauto.With(reg)
	return &Metrics{
		skew: auto.NewHistogram(prometheus.HistogramOpts{
			Namespace: "slurmbridge", Name: "record_clock_skew_seconds",
			Help: "Difference of a node's clock and the controller's, in either direction, at each record; counted in " +
				"whole seconds.",
			Buckets: []float64{1, 2, 5, 10, 30, 60, 120, 300, 600}, NativeHistogramBucketFactor: 1.1,
		}),
		refusals: auto.NewCounterVec(prometheus.CounterOpts{
			Namespace: "slurmbridge", Name: "record_refusals_total",
			Help: "Records refused, by reason: credential (none, forged, another key, used before), clock (sender's and " +
				"controller's differ too much), user (who may not send), body (too large, too slow), record (it can't be true).",
		}, []string{"reason"}),
	}
}

// Handler takes records from the users that AllowUID allows.
type Handler struct {
	Credentials credential.Method
	AllowUID    func(uid uint32) bool
	// Keep stores a record; isNew is false for one that was there already. The record's times are by its node's clock,
	// which is behind this host's by that much (negative: ahead; 0 = less than MinSkew). They must not be corrected in
	// what identifies a record: the next try may find another skew.
	Keep func(ctx context.Context, r *gpuprof.Record, behind time.Duration) (isNew bool, err error)
	// Result receives the result of each request: new, duplicate, refused or failed.
	Result  func(result string)
	Metrics *Metrics
	// Log receives differing clocks and refusals, once an hour for each node.
	Log *slog.Logger
	// BodyTimeout bounds the time a body may take. Default 30 s.
	BodyTimeout time.Duration

	once  sync.Once
	turns credential.Turns
	said  said
}

// refusal is why a request isn't followed: a status, one word for the metrics ("" = the controller
// is at fault), and the reason for people. nil = it is followed.
type refusal struct {
	status       int
	reason, text string
}

// ServeHTTP answers 201 for a new record, 200 for a known one, 401 for an invalid credential, 403 for a user without
// the right to send records, 408 for a body that takes too long, 413 and 422 for an invalid record, 503 if the record
// could not be stored. After 413 and 422 it is no use to send it again.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	result := h.follow(w, r, Path, func(c *credential.Credential, body []byte) (string, int, *refusal) {
		rec, err := unpack(body)
		if err != nil {
			return "", 0, &refusal{http.StatusUnprocessableEntity, "record", err.Error()}
		}
		isNew, err := h.Keep(r.Context(), rec, h.skew(rec.Node, c.Behind()))
		switch {
		case err != nil:
			return "", 0, &refusal{
				http.StatusServiceUnavailable, "",
				"the record could not be kept; the controller's log says why",
			}
		case isNew:
			return "new", http.StatusCreated, nil
		}
		return "duplicate", http.StatusOK, nil
	})
	h.Result(result)
}

// Idle takes the reports of idle jobs, from users that may send records.
func (h *Handler) Idle(take func(*gpuprof.IdleReport)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.follow(w, r, IdlePath, func(_ *credential.Credential, body []byte) (string, int, *refusal) {
			report := new(gpuprof.IdleReport)
			err := json.Unmarshal(body, report)
			if err == nil {
				err = report.Validate()
			}
			if err != nil {
				return "", 0, &refusal{http.StatusUnprocessableEntity, "record", fmt.Sprintf("not a report: %v", err)}
			}
			take(report)
			return "taken", http.StatusOK, nil
		})
	})
}

// follow authenticates the sender of a request to a path, hands the body to take, and answers with the result: what
// take returns, "refused", or "failed" where the controller is at fault. Refusals are counted and logged.
func (h *Handler) follow(w http.ResponseWriter, r *http.Request, path string,
	take func(c *credential.Credential, body []byte) (result string, status int, no *refusal),
) (result string) {
	h.once.Do(func() { h.turns.Method = h.Credentials })
	c, body, no := h.believe(w, r, path)
	status := 0
	if no == nil {
		result, status, no = take(c, body)
	}
	if no == nil {
		w.Header().Set(resultHeader, result)
		w.WriteHeader(status)
		return result
	}
	result = "failed"
	if no.reason != "" {
		result = "refused"
		h.Metrics.refusals.WithLabelValues(no.reason).Inc()
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		if h.said.first(host + " " + no.reason) {
			h.Log.Warn("records are refused", "from", host, "why", no.text)
		}
	}
	w.Header().Set(resultHeader, result)
	http.Error(w, no.text, no.status)
	return result
}

// believe authenticates the sender of what is posted to a path, reads the body, and checks that the
// credential is of that body.
func (h *Handler) believe(w http.ResponseWriter, r *http.Request, path string) (*credential.Credential, []byte,
	*refusal,
) {
	c, no := h.sender(r)
	if no != nil {
		return nil, nil, no
	}
	body, no := h.read(w, r)
	if no == nil && c.Payload != bindTo(path, body) {
		no = &refusal{http.StatusUnauthorized, "credential", "the credential is for another record"}
	}
	return c, body, no
}

func (h *Handler) sender(r *http.Request) (*credential.Credential, *refusal) {
	header := h.Credentials.Header()
	cred := r.Header.Get(header)
	if cred == "" {
		return nil, &refusal{http.StatusUnauthorized, "credential", "a record needs a credential in " + header +
			": does key_file of gpuprof.yaml fit that of the controller's slurmbridge.yaml?"}
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	c, err := h.turns.Decode(r.Context(), host, cred)
	switch {
	case r.Context().Err() != nil:
		return nil, &refusal{http.StatusServiceUnavailable, "", "too many records at once"}
	case errors.Is(err, credential.ErrDown):
		if h.said.first("down") {
			h.Log.Error("no record can be believed", "err", err, "hint", h.Credentials.Hint(err))
		}
		return nil, &refusal{http.StatusServiceUnavailable, "", "the controller can't check credentials; there: " +
			h.Credentials.Hint(err)}
	case errors.Is(err, credential.ErrExpired):
		if c != nil {
			h.Metrics.skew.Observe(c.Behind().Abs().Seconds())
		}
		return nil, &refusal{http.StatusUnauthorized, "clock", err.Error() + "; " + h.Credentials.Hint(err)}
	case errors.Is(err, credential.ErrInvalid):
		return nil, &refusal{http.StatusUnauthorized, "credential", err.Error() + ": " + h.Credentials.Hint(err)}
	case err != nil:
		return nil, &refusal{http.StatusUnauthorized, "credential", err.Error()}
	case !h.AllowUID(c.UID):
		return nil, &refusal{
			http.StatusForbidden, "user",
			fmt.Sprintf("user %d may not send records: gpuprof runs as root, or as a user that the controller's record_users "+
				"names", c.UID),
		}
	}
	return c, nil
}

func (h *Handler) read(w http.ResponseWriter, r *http.Request) ([]byte, *refusal) {
	// A ResponseWriter without deadlines (in tests) needs none.
	deadline := http.NewResponseController(w)
	_ = deadline.SetReadDeadline(time.Now().Add(cmp.Or(h.BodyTimeout, 30*time.Second)))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPacked))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &refusal{
			http.StatusRequestEntityTooLarge, "body",
			fmt.Sprintf("the record is larger than %d bytes", maxPacked),
		}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &refusal{http.StatusRequestTimeout, "body", "the record took too long"}
	case err != nil:
		return nil, &refusal{http.StatusBadRequest, "body", "the record ended early"}
	}
	_ = deadline.SetReadDeadline(time.Time{}) // keeping the record may take its time
	return body, nil
}

// unpack reads a record, however much a hostile body would unpack to.
func unpack(body []byte) (*gpuprof.Record, error) {
	var text []byte
	zr, err := gzip.NewReader(bytes.NewReader(body))
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(zr, maxBody+1))
	}
	rec := new(gpuprof.Record)
	switch {
	case err != nil:
		return nil, errors.New("not a packed record")
	case len(text) > maxBody:
		return nil, fmt.Errorf("the record is larger than %d bytes unpacked", maxBody)
	case json.Unmarshal(text, rec) != nil:
		return nil, errors.New("not a record")
	}
	return rec, rec.Validate()
}

// skew notes how far a node's clock is behind, and returns it, 0 = as good as not.
func (h *Handler) skew(node string, behind time.Duration) time.Duration {
	h.Metrics.skew.Observe(behind.Abs().Seconds())
	if behind.Abs() < MinSkew {
		return 0
	}
	if h.said.first("clock of " + node) {
		h.Log.Warn("a node's clock is off: its records' times are corrected where they meet ours", "node", node, "behind",
			behind)
	}
	return behind
}

// said keeps a log short.
type said struct {
	mu   sync.Mutex
	when map[string]time.Time
}

// first reports whether this has not been logged for an hour. A sender with many addresses can't fill the memory.
func (s *said) first(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if at, ok := s.when[what]; ok && now.Sub(at) < time.Hour {
		return false
	}
	if s.when == nil || len(s.when) > 4096 {
		s.when = map[string]time.Time{}
	}
	s.when[what] = now
	return true
}
