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

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
)

// Handler takes records from the users that AllowUID allows.
type Handler struct {
	Credentials credential.Method
	AllowUID    func(uid uint32) bool
	// Keep stores a record; isNew is false for one that was there already. The
	// record's times are by its node's clock, which is behind this host's by that
	// much (negative: ahead; 0 = less than MinSkew). They must not be corrected in
	// what identifies a record: the next try may find another skew.
	Keep func(ctx context.Context, r *gpuprof.Record, behind time.Duration) (isNew bool, err error)
	// Result receives the result of each request: new, duplicate, refused or failed.
	Result  func(result string)
	Metrics *Metrics // nil = not exported
	// Log receives differing clocks and refusals, once an hour for each node; nil = none.
	Log *slog.Logger
	// BodyTimeout bounds the time a body may take. Default 30 s.
	BodyTimeout time.Duration

	once  sync.Once
	turns credential.Turns
	said  said
}

func (h *Handler) init() {
	h.once.Do(func() {
		h.turns.Method = h.Credentials
		if h.Metrics == nil {
			h.Metrics = NewMetrics(prometheus.NewRegistry())
		}
	})
}

// ServeHTTP answers 201 for a new record, 200 for a known one, 401 for an invalid credential, 403
// for a user without the right to send records, 408 for a body that takes too long, 413 and 422 for
// an invalid record, 503 if the record could not be stored. After 413 and 422 it is no use to send
// it again.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.init()
	status, reason, text := h.take(w, r)
	result := "refused"
	switch status {
	case http.StatusCreated:
		result = "new"
	case http.StatusOK:
		result = "duplicate"
	case http.StatusServiceUnavailable:
		result = "failed"
	default:
		h.Metrics.refusals.WithLabelValues(reason).Inc()
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		if h.Log != nil && h.said.first(host+" "+reason) {
			h.Log.Warn("records are refused", "from", host, "why", text)
		}
	}
	if h.Result != nil {
		h.Result(result)
	}
	if status >= http.StatusBadRequest {
		http.Error(w, text, status)
		return
	}
	w.Header().Set(resultHeader, result)
	w.WriteHeader(status)
}

// take returns a status, one word for why not, and the same for people.
func (h *Handler) take(w http.ResponseWriter, r *http.Request) (status int, reason, text string) {
	c, status, reason, text := h.believe(r)
	if status != 0 {
		return status, reason, text
	}
	body, status, text := h.read(w, r)
	if status != 0 {
		return status, "body", text
	}
	if c.Payload != bind(body) {
		return http.StatusUnauthorized, "credential", "the credential is for another record"
	}
	rec, err := unpack(body)
	if err != nil {
		return http.StatusUnprocessableEntity, "record", err.Error()
	}
	h.Metrics.bytes.Observe(float64(len(body)))
	behind := h.skew(rec.Node, c.Behind())
	isNew, err := h.Keep(r.Context(), rec, behind)
	switch {
	case err != nil:
		return http.StatusServiceUnavailable, "", "the record could not be kept; the controller's log says why"
	case isNew:
		return http.StatusCreated, "", ""
	}
	return http.StatusOK, "", ""
}

// believe authenticates the sender; status 0 = it may send records.
func (h *Handler) believe(r *http.Request) (c *credential.Credential, status int, reason, text string) {
	header := h.Credentials.Header()
	cred := r.Header.Get(header)
	if cred == "" {
		return nil, http.StatusUnauthorized, "credential", "a record needs a credential in " + header + ": does key_file of gpuprof.yaml fit that of the controller's slurmbridge.yaml?"
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	c, err := h.turns.Decode(r.Context(), host, cred)
	switch {
	case r.Context().Err() != nil:
		return nil, http.StatusServiceUnavailable, "", "too many records at once"
	case errors.Is(err, credential.ErrDown):
		if h.Log != nil && h.said.first("down") {
			h.Log.Error("no record can be believed", "err", err, "hint", h.Credentials.Hint(err))
		}
		return nil, http.StatusServiceUnavailable, "", "the controller can't check credentials; there: " + h.Credentials.Hint(err)
	case errors.Is(err, credential.ErrExpired):
		if c != nil {
			h.Metrics.skew.Observe(c.Behind().Abs().Seconds())
		}
		return nil, http.StatusUnauthorized, "clock", err.Error() + "; " + h.Credentials.Hint(err)
	case errors.Is(err, credential.ErrInvalid):
		return nil, http.StatusUnauthorized, "credential", err.Error() + ": " + h.Credentials.Hint(err)
	case err != nil:
		return nil, http.StatusUnauthorized, "credential", err.Error()
	case !h.AllowUID(c.UID):
		return nil, http.StatusForbidden, "user", fmt.Sprintf("user %d may not send records: gpuprof runs as root, or as a user that the controller's record_users names", c.UID)
	}
	return c, 0, "", ""
}

// read reads the packed body; status 0 = it is there.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) (body []byte, status int, text string) {
	// A ResponseWriter without deadlines (in tests) needs none.
	deadline := http.NewResponseController(w)
	_ = deadline.SetReadDeadline(time.Now().Add(cmp.Or(h.BodyTimeout, 30*time.Second)))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPacked))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, http.StatusRequestEntityTooLarge, fmt.Sprintf("the record is larger than %d bytes", maxPacked)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, http.StatusRequestTimeout, "the record took too long"
	case err != nil:
		return nil, http.StatusBadRequest, "the record ended early"
	}
	_ = deadline.SetReadDeadline(time.Time{}) // keeping the record may take its time
	return body, 0, ""
}

// unpack reads a record, however much a hostile body would unpack to.
func unpack(body []byte) (*gpuprof.Record, error) {
	zr, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("not a packed record")
	}
	text, err := io.ReadAll(io.LimitReader(zr, maxBody+1))
	if err != nil {
		return nil, errors.New("not a packed record")
	}
	if len(text) > maxBody {
		return nil, fmt.Errorf("the record is larger than %d bytes unpacked", maxBody)
	}
	rec := new(gpuprof.Record)
	if err := json.Unmarshal(text, rec); err != nil {
		return nil, errors.New("not a record")
	}
	return rec, rec.Validate()
}

// skew notes how far a node's clock is behind, and returns it, 0 = as good as
// not.
func (h *Handler) skew(node string, behind time.Duration) time.Duration {
	h.Metrics.skew.Observe(behind.Abs().Seconds())
	if behind.Abs() < MinSkew {
		return 0
	}
	if h.Log != nil && h.said.first("clock of "+node) {
		h.Log.Warn("a node's clock is off: its records' times are corrected where they meet ours", "node", node, "behind", behind)
	}
	return behind
}

// said keeps a log short.
type said struct {
	mu   sync.Mutex
	when map[string]time.Time
}

// first reports whether this has not been logged for an hour. A sender with many
// addresses can't fill the memory.
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
