package prolog

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
)

// Controller is slurmbridge serve, as hooks query it.
type Controller struct {
	// URL is its address, e.g. http://head:9797, or several separated by commas; the first to answer counts.
	URL string
	// Config names a controller_config file, as the agent's setting does: whom to trust and how to authenticate. "" = the
	// system's authorities, and no authentication.
	Config string
	// Credentials prove that root sent a request; nil = no proof.
	Credentials credential.Method
	// Timeout bounds a question, for which a job's start waits.
	Timeout time.Duration
}

// Addresses parses one address of a controller, or several separated by commas.
func Addresses(text string) (out []*url.URL, err error) {
	for one := range strings.SplitSeq(text, ",") {
		one = strings.TrimSpace(one)
		u, err := url.Parse(one)
		switch {
		case err != nil:
			return nil, errors.Unwrap(err) // without the text, which may hold a password
		case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
			return nil, fmt.Errorf("%q is no address such as http://head:9797 or https://head:9797", one)
		case u.User != nil:
			return nil, errors.New("a password does not belong in the address, which is logged: give it as basic_auth in the " +
				"file that controller_config names")
		case u.RawQuery != "" || u.Fragment != "":
			return nil, fmt.Errorf("%q has more than an address", one)
		}
		out = append(out, u)
	}
	return out, nil
}

// Terms is the controller's answer about a job that is to share a GPU.
type Terms struct {
	// MiB is the most memory that each of the job's processes may have of the GPU; 0 = any.
	MiB int64 `json:"mib"`
	// ByHand: the job's owner, not the controller, chose its part of the GPU.
	ByHand bool `json:"by_hand"`
}

// Terms requests the terms of a user's job. It returns in time even if a file of the configuration is on a disk that
// hangs.
func (c *Controller) Terms(ctx context.Context, job int64, user string) (none Terms, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	type answer struct {
		terms Terms
		err   error
	}
	all := strings.Split(c.URL, ",")
	done := make(chan answer, len(all))
	for _, url := range all {
		go func() {
			terms, err := c.ask(ctx, strings.TrimSpace(url), job, user)
			done <- answer{terms, err}
		}()
	}
	for range all {
		select {
		case a := <-done:
			if a.err == nil {
				return a.terms, nil
			}
			err = a.err
		case <-ctx.Done():
			return none, fmt.Errorf("ask the controller: no answer: %w", ctx.Err())
		}
	}
	return none, fmt.Errorf("ask the controller: %w", err)
}

func (c *Controller) ask(ctx context.Context, address string, job int64, user string) (none Terms, err error) {
	client, err := readClient(c.Config)
	if err != nil {
		return none, fmt.Errorf("controller_config: %w", err)
	}
	path := "/v1/memory/" + strconv.FormatInt(job, 10)
	to := strings.TrimSuffix(address, "/") + path + "?user=" + url.QueryEscape(user)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to, http.NoBody)
	if err != nil {
		return none, err
	}
	if c.Credentials != nil {
		cred, err := c.Credentials.Encode(ctx, "slurmbridge GET "+path)
		if err != nil {
			return none, err
		}
		req.Header.Set(c.Credentials.Header(), cred)
	}
	if client.user != "" {
		req.SetBasicAuth(client.user, client.password)
	}
	resp, err := client.http.Do(req)
	if err != nil {
		return none, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return none, err
	}
	if resp.StatusCode != http.StatusOK {
		return none, fmt.Errorf("the controller answers %d: %.200q", resp.StatusCode, strings.TrimSpace(string(body)))
	}
	var terms Terms
	if err := json.Unmarshal(body, &terms); err != nil || terms.MiB < 0 {
		return none, fmt.Errorf("the controller's answer is no limit: %.200q", body)
	}
	return terms, nil
}

type client struct {
	http           *http.Client
	user, password string
}

// readClient reads a controller_config, the part of Prometheus's format that gpuprof.yaml documents. Prometheus's own
// reader would double the time in which a hook starts.
func readClient(file string) (*client, error) {
	var cfg struct {
		TLS struct {
			CA     string `yaml:"ca_file"`
			Cert   string `yaml:"cert_file"`
			Key    string `yaml:"key_file"`
			Server string `yaml:"server_name"`
		} `yaml:"tls_config"`
		Basic struct {
			User string `yaml:"username"`
			File string `yaml:"password_file"`
		} `yaml:"basic_auth"`
	}
	in := func(name string) string {
		if filepath.IsAbs(name) {
			return filepath.Clean(name)
		}
		return filepath.Join(filepath.Dir(file), name)
	}
	if file != "" {
		text, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			return nil, err
		}
		d := yaml.NewDecoder(bytes.NewReader(text))
		d.KnownFields(true)
		if err := d.Decode(&cfg); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: hooks know ca_file, cert_file, key_file and server_name of tls_config, username and "+
				"password_file of basic_auth: %w", file, err)
		}
	}
	how := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cfg.TLS.Server}
	if cfg.TLS.CA != "" {
		pem, err := os.ReadFile(in(cfg.TLS.CA))
		if err != nil {
			return nil, err
		}
		how.RootCAs = x509.NewCertPool()
		if !how.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate", in(cfg.TLS.CA))
		}
	}
	if cfg.TLS.Cert != "" || cfg.TLS.Key != "" {
		pair, err := tls.LoadX509KeyPair(in(cfg.TLS.Cert), in(cfg.TLS.Key))
		if err != nil {
			return nil, err
		}
		how.Certificates = []tls.Certificate{pair}
	}
	c := &client{user: cfg.Basic.User, http: &http.Client{
		Transport: &http.Transport{TLSClientConfig: how, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10},
		// A credential is for the controller only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if cfg.Basic.File != "" {
		text, err := os.ReadFile(in(cfg.Basic.File))
		if err != nil {
			return nil, err
		}
		c.password = strings.TrimSpace(string(text))
	}
	return c, nil
}
