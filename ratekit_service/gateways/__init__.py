"""For proxies that ask over HTTP whether a request may pass: ext_authz, auth_request, forward auth."""
