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
	"net/http"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
)

// Sender posts records to a controller.
type Sender struct {
	// URL of the controller, e.g. http://head:9797.
	URL         string
	Credentials credential.Method
	// Client talks to the controller; needed, see NewClient.
	Client *http.Client
	// Timeout bounds one try. Default 30 s.
	Timeout time.Duration
}

// ErrRefused says that the controller will never take this record; sending it
// again is no use.
var ErrRefused = errors.New("the controller refused the record")

// AnswerError is any answer but yes: the controller is there, and something is
// wrong with it, with this node or with this record.
type AnswerError struct {
	Status int
	Text   string // what to do about it
}

// Error says what was answered.
func (e *AnswerError) Error() string {
	return fmt.Sprintf("the controller answers %d %s: %s", e.Status, http.StatusText(e.Status), e.Text)
}

// pack makes the body of a record.
func pack(r *gpuprof.Record) ([]byte, error) {
	var buf bytes.Buffer
	zw, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(zw).Encode(r); err != nil {
		return nil, err
	}
	if err := zw.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// Send posts one record. Returns an error that wraps ErrRefused if another try would fail, too, an
// AnswerError if the controller refused for another reason; any other error comes from this node or
// the network.
func (s *Sender) Send(ctx context.Context, r *gpuprof.Record) error {
	body, err := pack(r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return s.post(ctx, Path, body, "gzip", cmp.Or(s.Timeout, 30*time.Second))
}

// post sends a body with a credential for it; encoding "" = as it is.
func (s *Sender) post(ctx context.Context, path string, body []byte, encoding string, timeout time.Duration) error {
	cred, err := s.Credentials.Encode(ctx, bindTo(path, body))
	if err != nil {
		return fmt.Errorf("%w: %s", err, s.Credentials.Hint(err))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(s.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set(s.Credentials.Header(), cred)
	req.Header.Set("Content-Type", "application/json")
	if encoding != "" {
		req.Header.Set("Content-Encoding", encoding)
	}
	resp, err := s.Client.Do(req)
	if err != nil {
		return advise(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
	return answer(resp, strings.TrimSpace(string(text)))
}

// answer makes an error of what the controller said; nil = it has the record.
func answer(resp *http.Response, text string) error {
	switch status := resp.StatusCode; {
	case resp.Header.Get(resultHeader) != "" && status < 300:
		return nil
	case status == http.StatusRequestEntityTooLarge, status == http.StatusUnprocessableEntity:
		return fmt.Errorf("%w: %s", ErrRefused, text)
	case status == http.StatusUnauthorized && resp.Header.Get("WWW-Authenticate") != "":
		text = "its web_config asks for a user and a password: give them as basic_auth in the file that controller_config names"
	case status == http.StatusBadRequest && strings.Contains(text, "HTTPS"):
		text = "it speaks TLS: the setting controller begins with https://"
	case status >= 300 && status < 400:
		text = fmt.Sprintf("it sends us to %q: name that in the setting controller", resp.Header.Get("Location"))
	case status < 300 || status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		text = "is slurmbridge serve there, of this release, and not another program? See the setting controller"
	}
	return &AnswerError{resp.StatusCode, text}
}
