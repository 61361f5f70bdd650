package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Question is the payload of a credential for a GET of path, which is valid for no other request.
func Question(path string) string { return "slurmbridge " + http.MethodGet + " " + path }

// Asker identifies the user of a request.
type Asker struct {
	// Header is the request header with the user's credential.
	Header string
	// Decode checks a credential that a host sent.
	Decode func(ctx context.Context, host, cred string) (*credential.Credential, error)
	// Hint says what to do about an error of Decode.
	Hint func(error) string
	// Trusted reports whether a user may see everything: root, the bridge's own user, and agents.
	Trusted func(uid uint32) bool
	// Name returns a user's name, "" = unknown.
	Name func(uid uint32) string
}

// errNobody: a request has no credential, or one for another request.
var errNobody = errors.New("the request has no credential for it")

// who returns a request's credential. The error becomes part of the answer, so it has no details of the controller.
func (a *Asker) who(req *http.Request) (*credential.Credential, error) {
	if a == nil || req.Header.Get(a.Header) == "" {
		return nil, errNobody
	}
	host, _, _ := net.SplitHostPort(req.RemoteAddr)
	c, err := a.Decode(req.Context(), host, req.Header.Get(a.Header))
	switch {
	case errors.Is(err, credential.ErrDown):
		return nil, fmt.Errorf("the controller can't check credentials; there: %s", a.Hint(err))
	case err != nil && a.Hint(err) != "":
		return nil, fmt.Errorf("%w: %s", err, a.Hint(err))
	case err != nil:
		return nil, err
	case c.Payload != Question(req.URL.Path):
		return nil, errNobody
	}
	return c, nil
}

// viewer is the user that an answer is for.
type viewer struct {
	uid  uint32
	user string // "" = not identified
	all  bool   // may see everything
	err  error  // why the user isn't identified
}

// viewer identifies a request's user. Without one, WWW-Authenticate names the credential's header.
func (a *Asker) viewer(w http.ResponseWriter, req *http.Request) viewer {
	c, err := a.who(req)
	switch {
	case a == nil:
		return viewer{err: err}
	case err != nil:
		w.Header().Set("WWW-Authenticate", a.Header)
		return viewer{err: err}
	case c.User == "":
		c.User = a.Name(c.UID) // a Slurm token has the name even of a user unknown here (use_client_ids)
	}
	return viewer{c.UID, c.User, a.Trusted(c.UID), nil}
}

// viewer identifies a request's user if anything is hidden; otherwise the viewer sees everything.
func (s *Server) viewer(w http.ResponseWriter, req *http.Request, hidden bool) viewer {
	if !hidden {
		return viewer{all: true}
	}
	return s.Asker.viewer(w, req)
}

// ProfilesPath serves users, by credential, the profiles that apply to their jobs.
const ProfilesPath = "/v1/profiles"

func (a *api) profiles(w http.ResponseWriter, req *http.Request) (any, error) {
	who := a.Asker.viewer(w, req)
	if who.user == "" && !who.all {
		return nil, fault{http.StatusUnauthorized, "the request needs a credential: slurmbridge profiles list, called on a " +
			"machine of the cluster, has one"}
	}
	list, err := a.Profiles(req.Context(), who.user, who.all)
	if err != nil {
		return nil, errDatabase
	}
	return list, nil
}

// MemoryPath serves a job's memory limit to a node's prolog, which adds ?user= if it knows the job's owner.
const MemoryPath = "/v1/memory/{job}"

// MemoryReport is the answer: the memory that each of the job's processes may hold, MiB; 0 = no limit. ByHand: the job
// is in no group, so its owner requested its part of a GPU.
type MemoryReport struct {
	MiB    int64 `json:"mib"`
	ByHand bool  `json:"by_hand,omitempty"`
}

// memory answers a node with the memory limit of a job that shares a GPU.
func (a *api) memory(w http.ResponseWriter, req *http.Request) (any, error) {
	ref := req.PathValue("job")
	if !text.ValidRef(ref) {
		return nil, errRef
	}
	who := a.Nodes.viewer(w, req)
	if who.err == nil && !who.all {
		who.err = fmt.Errorf("user %d may not", who.uid)
	}
	if who.err != nil {
		return nil, fault{http.StatusUnauthorized, "only a node's prolog may ask, with root's credential: " + who.err.Error()}
	}
	limit, err := a.Memory(req.Context(), ref, req.URL.Query().Get("user"))
	if err != nil {
		return nil, errJournal
	}
	return limit, nil
}
