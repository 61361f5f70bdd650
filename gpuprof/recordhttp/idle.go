package recordhttp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// IdlePath is where nodes tell of jobs that do nothing with their GPUs.
const IdlePath = "/v1/idle/report"

// idleTimeout bounds one try: the next report is due soon.
const idleTimeout = 10 * time.Second

// SendIdle tells the controller of a node's idle jobs. What doesn't arrive is of no use later.
func (s *Sender) SendIdle(ctx context.Context, r *gpuprof.IdleReport) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	cred, err := s.Credentials.Encode(ctx, bindTo(IdlePath, body))
	if err != nil {
		return fmt.Errorf("%w: %s", err, s.Credentials.Hint(err))
	}
	ctx, cancel := context.WithTimeout(ctx, idleTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(s.URL, "/")+IdlePath, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set(s.Credentials.Header(), cred)
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.Client.Do(req)
	if err != nil {
		return advise(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
	return answer(resp, strings.TrimSpace(string(text)))
}

// Idle takes the reports of idle jobs, from those who may send records.
func (h *Handler) Idle(take func(*gpuprof.IdleReport)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.init()
		c, status, _, text := h.believe(r)
		var body []byte
		if status == 0 {
			body, status, text = h.read(w, r)
		}
		if status != 0 {
			http.Error(w, text, status)
			return
		}
		report := new(gpuprof.IdleReport)
		err := json.Unmarshal(body, report)
		if err == nil {
			err = report.Validate()
		}
		switch {
		case c.Payload != bindTo(IdlePath, body):
			http.Error(w, "the credential is for another report", http.StatusUnauthorized)
		case err != nil:
			http.Error(w, fmt.Sprintf("not a report: %v", err), http.StatusUnprocessableEntity)
		default:
			take(report)
			w.Header().Set(resultHeader, "taken")
			w.WriteHeader(http.StatusOK)
		}
	})
}
