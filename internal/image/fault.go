package image

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"skerry.dev/skerry"
)

// ErrDamaged is in the chain of errors about a registered image whose files are
// missing, changed or of an older format. Store.Repair makes it whole again.
var ErrDamaged = errors.New("image is damaged")

// fault gives an error of the step in progress its code. Errors that already
// carry one keep it, with the step put in front.
func fault(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	step := fmt.Sprintf(format, args...)
	var known *skerry.Error
	if errors.As(err, &known) {
		wrapped := *known
		wrapped.Message = step + ": " + err.Error()
		wrapped.Err = err
		return &wrapped
	}
	code, hint := codeOf(err)
	return &skerry.Error{Code: code, Message: step + ": " + hint + err.Error(), Err: err}
}

// codeOf sorts the errors of the operating system, the network and registries
// into codes; hint, if not empty, is put before the error's own text.
func codeOf(err error) (code skerry.Code, hint string) {
	var dns *net.DNSError
	var status *transport.Error
	var netErr net.Error
	var again *transient
	switch {
	case skerry.DiskFull(err):
		return skerry.CodeExhausted, "the disk is full: "
	case errors.Is(err, context.DeadlineExceeded):
		return skerry.CodeTimeout, ""
	case errors.Is(err, context.Canceled):
		return skerry.CodeUnavailable, "cancelled: "
	case errors.As(err, &status):
		return codeOfStatus(status.StatusCode)
	case errors.As(err, &dns) && dns.IsNotFound:
		return skerry.CodeNotFound, "unknown host: "
	case isTLSFault(err):
		return skerry.CodeUnavailable, "the registry's certificate or protocol is not as expected (plain_http allows a registry without TLS): "
	case errors.As(err, &netErr), errors.As(err, &again):
		return skerry.CodeUnavailable, ""
	}
	return skerry.CodeInternal, ""
}

func codeOfStatus(status int) (code skerry.Code, hint string) {
	switch status {
	case http.StatusUnauthorized:
		return skerry.CodeUnauthorized, "the registry wants a (different) login, or there is no such repository: "
	case http.StatusForbidden:
		return skerry.CodeForbidden, "the login does not allow it: "
	case http.StatusNotFound:
		return skerry.CodeNotFound, "the registry has no such image: "
	case http.StatusTooManyRequests:
		return skerry.CodeUnavailable, "the registry's rate limit is reached: "
	}
	return skerry.CodeUnavailable, ""
}

func isTLSFault(err error) bool {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	return errors.As(err, &authority) || errors.As(err, &host) || errors.As(err, &invalid) ||
		errors.Is(err, errPlainHTTP) || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

// badDigest reports content that is not what its digest promises.
func badDigest(what, want, got string) *skerry.Error {
	return &skerry.Error{Code: skerry.CodeInvalid, Rule: "digest", Bound: want,
		Message: fmt.Sprintf("%s: content has digest %s, want %s", what, got, want)}
}

// tooLarge reports something over one of the store's limits.
func tooLarge(what string, limit int64) *skerry.Error {
	return &skerry.Error{Code: skerry.CodeTooLarge, Rule: "max", Bound: fmt.Sprint(limit),
		Message: fmt.Sprintf("%s: larger than the limit of %d bytes", what, limit)}
}
